"""Turns the credential of a request into a verified Identity. No HTTP here."""
