"""Workers deliver events to the code that handles them, retry, acknowledge and schedule that work."""
