"""Makes summaries and topics of a conversation, and prunes it."""
