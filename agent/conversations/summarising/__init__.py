"""Summaries, topics and pruning of a conversation."""
