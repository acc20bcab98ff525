"""memories: what is remembered about users."""
