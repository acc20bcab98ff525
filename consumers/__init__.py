"""Composition and faces: roles, workers, servers, the Python client, LangGraph, HTTP and the command line."""
