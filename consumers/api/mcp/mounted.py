"""Serves MCP over streamable HTTP in the HTTP server's application."""

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus

from fastapi import FastAPI
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from turnlog.agent.access.access import Access
from turnlog.agent.access.identity import Unauthenticated
from turnlog.agent.runtime import Runtime
from turnlog.consumers.api.mcp.oauth import challenge, mount_sign_in, resource_of
from turnlog.consumers.api.mcp.tools import CALLER, make_server
from turnlog.consumers.api.principal import Principal, use_zone
from turnlog.consumers.api.problems import problem_of
from turnlog.events.errors import TurnlogError

PATH = "/mcp"


class Authenticated:
    """ASGI middleware that identifies the caller before MCP reads anything, by the same tokens and keys as every
    route.
    """

    def __init__(self, app: ASGIApp, runtime: Runtime) -> None:
        self._app, self._runtime = app, runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        kind, _, credential = headers.get("authorization", "").partition(" ")
        try:
            if kind.lower() != "bearer":
                raise Unauthenticated("send a token: `Authorization: Bearer …`; `turnlog token --user NAME` prints one")
            resource = resource_of(self._runtime.settings, HTTPConnection(scope))
            access = self._runtime.cached(Access)
            identity = await access.identify(credential, headers.get("x-turnlog-user"), resource)
            use_zone(identity, headers.get("x-turnlog-timezone"))
        except TurnlogError as error:
            answer = problem_of(error)
            if answer.status_code == HTTPStatus.UNAUTHORIZED:
                answer.headers["WWW-Authenticate"] = challenge(self._runtime.settings, HTTPConnection(scope))
            return await answer(scope, receive, send)
        scope[CALLER] = Principal(identity, self._runtime.for_tenant(identity.tenant), self._runtime)
        await self._app({**scope, "path": PATH, "raw_path": PATH.encode()}, receive, send)


def mount(app: FastAPI, runtime: Runtime) -> None:
    """Serves MCP at /mcp and /mcp/ while the application runs. `RequestLimits` has checked Host and Origin.

    A GET is refused with 405, as the protocol demands of a server that sends nothing by itself (MCP 2025-06-18,
    Transports): its stream would stay empty, and delay the server's stop.
    """
    server = make_server()
    inner = server.streamable_http_app(
        stateless_http=True,
        json_response=True,
        max_request_body_size=runtime.settings.api_max_body,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    authenticated = Authenticated(inner, runtime)
    for path in (PATH, f"{PATH}/"):
        app.router.routes.append(Route(path, authenticated, methods=["POST", "DELETE"]))

    mount_sign_in(app, runtime)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with server.session_manager.run():
            yield

    app.router.lifespan_context = lifespan
