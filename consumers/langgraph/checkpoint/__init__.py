"""TurnlogSaver: LangGraph's checkpointer on the log."""
