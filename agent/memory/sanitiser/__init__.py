"""Masks sensitive parts of a text, depending on a level, and recognises secrets. Pure."""
