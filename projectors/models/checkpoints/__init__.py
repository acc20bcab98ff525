"""P3 checkpoints: LangGraph's state per thread."""
