"""Short-term memory: sessions, their segments and their hot copies (P9, C7; seed B)."""
