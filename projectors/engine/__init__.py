"""Reads the log in order and applies its events; rows and position are written in one transaction."""
