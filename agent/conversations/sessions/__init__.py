"""Short-term memory: sessions, their segments and their hot copies."""
