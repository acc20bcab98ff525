"""Compacts and merges old memories."""
