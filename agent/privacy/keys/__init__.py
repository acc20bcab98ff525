"""Keys that encrypt users' words: made, wrapped, copied to their stream, destroyed."""
