"""Strikes words or a whole turn: finds events that repeat them, replaces these, and searches for remains."""
