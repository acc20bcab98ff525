"""Masks what is sensitive in a text, by level, and recognises secrets. Pure."""
