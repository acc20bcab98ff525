"""The application: routes, errors and limits around one open runtime."""

import asyncio
from collections import Counter
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from turnlog.agent.operations.dead_letters import React
from turnlog.agent.runtime import Runtime
from turnlog.consumers.api import measuring, problems
from turnlog.consumers.api.dialects import (
    ai_agent,
    ai_agent_admin,
    ai_agent_chat,
    chat_stream,
    session_memory,
    sockets,
)
from turnlog.consumers.api.dialects.openai import chat, conversations, errors, models, responses, stored
from turnlog.consumers.api.document import TITLES, documented, operation_id
from turnlog.consumers.api.idempotency import Answers
from turnlog.consumers.api.jobs import Jobs
from turnlog.consumers.api.mcp.mounted import mount
from turnlog.consumers.api.measuring import Measured
from turnlog.consumers.api.page import mount_page
from turnlog.consumers.api.paths import PathsInParts
from turnlog.consumers.api.principal import write_id
from turnlog.consumers.api.request_limits import LOOPBACK, RequestLimits
from turnlog.consumers.api.routes import (
    answers,
    health,
    limits,
    memories,
    operations,
    participants,
    person,
    personal,
    recall,
    runs,
    signing_in,
    threads,
    timeline,
    turns,
    webhooks,
)
from turnlog.consumers.api.streams import Streams
from turnlog.events import tracing

WITHOUT_WRITES = (health, signing_in, sockets)
MODULES = (
    threads,
    participants,
    turns,
    answers,
    runs,
    memories,
    recall,
    person,
    limits,
    operations,
    webhooks,
    timeline,
    personal,
    measuring,
    ai_agent_chat,
    ai_agent,
    ai_agent_admin,
    session_memory,
    chat_stream,
)
OPENAI_MODULES = (models, chat, responses, stored, conversations)
# Response headers that pages of other origins may read, besides the headers that browsers always let them read.
READABLE = (
    *("ETag", "Link", "Retry-After", "Idempotent-Replayed", "X-Next-Cursor"),
    *("X-Turnlog-Thread", "X-Turnlog-Receipt", "X-Request-Id"),
)
ONCE = [Depends(write_id)]  # detects repeated writes, also for routes whose function does not use the id
ERRORS: dict[int | str, dict[str, Any]] = {kind: {"model": problems.Problem} for kind in ("4XX", "5XX")}


def create_app(runtime: Runtime, react: React) -> FastAPI:
    """Returns an ASGI application that serves the runtime, and neither opens nor closes it. react: repeats a reactor's
    work, for dead letters.

    state.stopping: set when the server stops, so that endless streams end.
    """
    settings = runtime.settings

    app = FastAPIOffline(
        **TITLES,
        redoc_url=None,
        telemetry={"logs": False, "tracer_provider": tracing.provider()},
    )
    app.state.runtime = runtime
    app.state.stopping = asyncio.Event()
    app.state.streams = Streams()
    app.state.jobs = Jobs()
    app.state.open = Counter()
    app.state.react = react
    problems.add_handlers(app)
    errors.add_handler(app)
    app.router.routes.extend(_routes())
    app.openapi = document  # type: ignore[method-assign]  # as FastAPI's page says
    assert app.openapi_url is not None
    app.router.routes.insert(0, Route(app.openapi_url, _as_json, include_in_schema=False))
    mount(app, runtime)
    mount_page(app)
    app.add_middleware(Answers)
    origins = names_in(settings.api_origins)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=READABLE,
        )
    hosts = {*LOOPBACK, settings.api_host, *names_in(settings.api_hosts)}
    public = settings.api_public_url or ""
    hosts |= {urlsplit(public).hostname or settings.api_host}
    senders = [*origins, public.rstrip("/")]
    larger = {"/api/import": max(settings.api_max_import, settings.api_max_body)}
    app.add_middleware(RequestLimits, hosts=hosts, origins=senders, max_body=settings.api_max_body, larger=larger)
    app.add_middleware(Measured)
    app.add_middleware(PathsInParts)
    return app


def prepare_routes() -> None:
    """Creates the models of all routes, in half a second. FastAPI would otherwise do it at the first request to each
    router.
    """
    for route in _routes():
        route.matches({"type": "http", "method": "GET", "path": "/", "headers": []})


@cache
def _routes() -> list[BaseRoute]:
    """Returns the routes of all modules, created once for all applications of a process."""
    router = APIRouter()
    for module in WITHOUT_WRITES:
        router.include_router(module.router, responses=ERRORS, generate_unique_id_function=operation_id)
    for module in MODULES:
        router.include_router(
            module.router, responses=ERRORS, dependencies=ONCE, generate_unique_id_function=operation_id
        )
    for module in OPENAI_MODULES:
        router.include_router(
            module.router, responses=errors.DOCUMENTED, dependencies=ONCE, generate_unique_id_function=operation_id
        )
    return router.routes


@cache
def document() -> dict[str, Any]:
    """Returns the OpenAPI document, which takes a second and is shared by all applications of a process."""
    return documented(get_openapi(**TITLES, routes=_routes()))


def _as_json(request: Request) -> Response:
    """Returns the document as JSON. FastAPI runs it in a thread because it is not a coroutine."""
    return JSONResponse(document())


def names_in(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
