"""sessions: the short-term memory of conversations."""
