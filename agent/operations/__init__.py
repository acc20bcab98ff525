"""Operates the service: health, lag, dead letters, usage, jobs and imports."""
