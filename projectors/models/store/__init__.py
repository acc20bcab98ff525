"""Read model of LangGraph's long-term store."""
