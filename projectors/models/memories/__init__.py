"""P7 memories: what is remembered about users."""
