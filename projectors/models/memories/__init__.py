"""memories: the memories about users."""
