"""Decides on candidate memories (new, repeated, in conflict) and scores them."""
