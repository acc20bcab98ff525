"""Calls models for chat, embeddings and text tasks: those of any OpenAI-compatible server, or offline ones."""
