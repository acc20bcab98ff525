"""LangGraph's long-term store as rows."""
