"""checkpoints: LangGraph's state per thread."""
