"""memories: long-term memories about users."""
