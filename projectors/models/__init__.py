"""The read models: their tables, their pure project() functions and their look-ups."""
