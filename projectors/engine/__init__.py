"""Reads the log in order and applies it: rows and position in one transaction."""
