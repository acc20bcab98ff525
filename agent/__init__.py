"""Uses the read models: contexts, recall, memory, sessions, privacy, importers, and the use cases."""
