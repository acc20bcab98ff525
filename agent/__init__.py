"""Implements the operations on the read models: contexts, recall, memory, sessions, privacy, imports and more."""
