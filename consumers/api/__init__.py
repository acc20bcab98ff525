"""The HTTP server: FastAPI over the use cases of turnlog.agent.use_cases. No route holds logic."""

from turnlog.consumers.api import paths

paths.register()
