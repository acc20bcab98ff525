"""Lets ids in paths contain slashes: a percent-encoded slash is part of an id, not a separator between parts.

ASGI servers decode a path before it is routed, so that both kinds of slashes look the same. The middleware here decodes
each part separately and escapes its slashes, so that the parameters of routes are the ids that the client sent.
"""

from typing import Any
from urllib.parse import unquote

from starlette.convertors import PathConvertor, StringConvertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

_ESCAPE, _ESCAPED, _SLASH = "\x1b", "\x1be", "\x1bs"
_WITH_ESCAPES = (b"%2f", b"%1b", _ESCAPE.encode())


class Part(StringConvertor):
    """A parameter that matches one part of the path."""

    def convert(self, value: str) -> str:
        return _plain(value)


class Rest(PathConvertor):
    """A parameter that matches the rest of the path."""

    def convert(self, value: str) -> str:
        return _plain(value)


class PathsInParts:
    """ASGI middleware that runs before any routing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        if any(escape in raw.lower() for escape in _WITH_ESCAPES):
            scope["path"] = "/".join(_escaped(unquote(part)) for part in raw.decode("latin-1").split("/"))
        await self._app(scope, receive, send)


def register() -> None:
    """Registers these convertors for all routes that are created afterwards."""
    register_url_convertor("str", Part())
    register_url_convertor("path", Rest())


def route_template(scope: Scope) -> str | None:
    """Returns the path of the request's route as it is declared, such as /api/threads/{thread}; None if no route
    matches.
    """
    route: Any = scope.get("route")
    return getattr(route, "path", None)


def _escaped(part: str) -> str:
    return part.replace(_ESCAPE, _ESCAPED).replace("/", _SLASH)


def _plain(value: str) -> str:
    return value.replace(_SLASH, "/").replace(_ESCAPED, _ESCAPE) if _ESCAPE in value else value
