"""OpenAI's API: its clients get a memory when they use turnlog's base URL and key."""
