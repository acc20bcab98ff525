"""Rebuilds read models from the log: beside the live rows, a single thread in place, or to verify the live rows."""
