"""Dates in English and Chinese text as intervals of time."""
