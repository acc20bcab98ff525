"""The HTTP server: FastAPI over what agent/ can be asked for. No route holds logic."""

from turnlog.consumers.api import paths

paths.register()
