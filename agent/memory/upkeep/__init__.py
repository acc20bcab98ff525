"""Compaction and merging of old memories."""
