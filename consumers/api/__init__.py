"""The HTTP server: FastAPI over the use cases of turnlog.agent.use_cases. No route holds logic."""
