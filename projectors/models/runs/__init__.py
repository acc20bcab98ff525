"""Read model of agents' runs: the plans, tool calls, delegations and costs of each run."""
