"""Wiring: roles, reactors, the agent consumer, analytics and the command line."""
