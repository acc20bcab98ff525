"""OpenAI's API: its clients get a memory by another base URL and key."""
