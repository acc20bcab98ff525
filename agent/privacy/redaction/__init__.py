"""Strikes words or a complete turn: finds the events that repeat them, replaces these events, and searches for
remains."""
