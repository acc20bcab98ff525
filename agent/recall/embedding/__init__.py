"""Vectors of chunks and memories, kept in a content-addressed cache."""
