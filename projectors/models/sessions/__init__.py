"""sessions: short-term memory of conversations."""
