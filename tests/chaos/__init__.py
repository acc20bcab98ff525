"""Chaos: real servers and worker processes are killed while events are appended; nothing may be lost or doubled."""
