"""Teams of agents: agents as data, the fast router, tools, and plans of tool calls (ReWOO)."""
