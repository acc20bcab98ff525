"""Verifies credentials, limits requests, and manages API keys, tokens, subscribers and webhooks."""
