"""The service at work: health, lag, dead letters, usage, jobs, imports."""
