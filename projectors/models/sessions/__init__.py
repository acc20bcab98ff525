"""P9 sessions: the short-term memory of conversations."""
