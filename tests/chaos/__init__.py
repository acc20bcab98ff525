"""Chaos tests kill real servers and worker processes while events are appended; nothing may be lost or duplicated."""
