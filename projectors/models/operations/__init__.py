"""Read models of operation: usage, jobs, limits, agents, API keys, archives."""
