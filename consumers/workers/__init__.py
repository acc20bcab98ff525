"""Workers: delivery, retry, acknowledgement and schedule of work on events."""
