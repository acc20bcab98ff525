"""What a person or program can ask for: one function each, typed, no printing."""
