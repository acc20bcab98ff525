"""Implements short-term memory: sessions, their segments and their copies in memory."""
