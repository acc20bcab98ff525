"""Decides whether candidate memories are new, repeated or in conflict, and scores memories."""
