"""Implements the use cases over the read models: contexts, recall, memory, sessions, privacy, imports and more."""
