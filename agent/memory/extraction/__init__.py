"""Turns users' statements into candidate memories, by rules and by a model."""
