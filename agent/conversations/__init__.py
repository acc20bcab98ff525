"""Reads and changes conversations: turns, forks, sessions, summaries, archives and participants."""
