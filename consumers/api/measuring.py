"""Metrics of every HTTP request, by route template, and the page that Prometheus reads."""

import time

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnlog.agent import metrics
from turnlog.agent.operations.gauges import whole_page
from turnlog.consumers.api.paths import route_template
from turnlog.consumers.api.principal import ServerOperator

METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
router = APIRouter(tags=["operations"])


class Text(Response):
    media_type = CONTENT_TYPE_LATEST


@router.get("/metrics", response_class=Text)
@router.get("/admin/ai-agent/metrics/prometheus", response_class=Text)
async def prometheus(caller: ServerOperator) -> Text:
    """Returns the metrics of all processes, by role, in Prometheus' format."""
    return Text(await whole_page(caller.system))


class Measured:
    """ASGI middleware around all others except PathsInParts. Paths without a route share one label, as do unknown
    methods, because clients choose them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            seconds = time.perf_counter() - started
            metrics.HTTP_SECONDS.labels(method, route_template(scope) or "other", status).observe(seconds)
