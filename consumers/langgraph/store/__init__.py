"""TurnlogStore: LangGraph's long-term store on the log."""
