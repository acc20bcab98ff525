"""Read models for operators: usage, jobs, limits, agents, API keys, archives."""
