"""The composition root and the interfaces: roles, workers, servers, Python client, LangGraph, HTTP and command line."""
