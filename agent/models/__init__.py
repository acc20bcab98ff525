"""Models: chat, embeddings and text tasks, remote (any OpenAI-compatible server) or offline."""
