"""Masks sensitive parts of a text, by level, and recognises secrets. Pure."""
