"""The HTTP server: FastAPI routes over the functions of agent/. Routes contain no logic."""

from turnlog.consumers.api import paths

paths.register()
