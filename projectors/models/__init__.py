"""The read models: their tables, their pure project(), their lookups."""
