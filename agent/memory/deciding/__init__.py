"""What becomes of a candidate: new, repeated, in conflict; and its score."""
