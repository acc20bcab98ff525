"""Striking words or a whole turn: which events repeat it, their replacements, the search that proves it."""
