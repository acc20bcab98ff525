"""Answers each request on the log exactly once."""
