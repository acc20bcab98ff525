"""OpenAI's wire: any client of its API gets a memory by another base URL and key."""
