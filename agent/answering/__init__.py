"""The agent as a consumer: a request on the log is answered exactly once."""
