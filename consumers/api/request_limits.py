"""Middleware around all routes: refuses foreign hosts and origins, large bodies, slow senders and floods, and catches
errors.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from anyio import BrokenResourceError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turnlog.agent import metrics
from turnlog.agent.answering.fallback import locale_of
from turnlog.consumers.api.dialects.openai.errors import for_path
from turnlog.consumers.api.problems import Refused, problem, reader_language, unexpected
from turnlog.events.texts import valid_json

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS_S = 10.0
BODY_S = 60.0
MOST_REQUESTS = 200  # concurrent requests of one credential; more are refused before they cost anything
REQUESTS_RETRY_S = 1.0
MAX_HEADERS = 64 * 1024
TOO_LARGE = b"HTTP/1.1 431 \r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class RequestLimits:
    """ASGI middleware. hosts: names that requests may be sent to ("*" for any). origins: web pages that may send
    requests, besides those of this server. max_body: in bytes. larger: paths that take larger bodies, with their
    limits.

    Any web page can reach a server on loopback, so Host and Origin are checked there too.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        origins: Collection[str],
        max_body: int,
        larger: Mapping[str, int],
    ) -> None:
        self._app, self._hosts, self._origins = app, hosts, origins
        self._max_body, self._larger = max_body, larger
        self._running: Counter[tuple[str, str]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        reader_language.set(locale_of(headers.get("accept-language")))
        refusal = self._refusal(scope)
        if refusal is not None and scope["type"] == "http":
            return await for_path(scope["path"], problem(*refusal))(scope, receive, send)
        if refusal is not None:
            return await send({"type": "websocket.close", "code": 1008, "reason": refusal[2]})
        if scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        who = headers.get("authorization", ""), headers.get("x-turnlog-user", "")
        if who[0] and self._running[who] >= MOST_REQUESTS:
            metrics.WAITING_REFUSALS.labels("requests").inc()
            detail = f"{MOST_REQUESTS} of your requests are running in this process; send fewer at a time"
            refused = problem(429, "too-many-waiting", detail, retry_after=REQUESTS_RETRY_S)
            return await for_path(scope["path"], refused)(scope, receive, send)
        self._running[who] += 1
        try:
            # A larger body is a file, which is read in parts.
            is_json = "json" in headers.get("content-type", "") and scope["path"] not in self._larger
            await self._guarded(scope, _Body(receive, *self._limit_of(scope), is_json).receive, send)
        finally:
            self._running[who] -= 1
            if not self._running[who]:
                del self._running[who]

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Turns an error that no handler caught into a problem; if the response has begun, the error ends it."""
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:  # last resort: the client gets an id, never a traceback
            if begun and isinstance(error, ExceptionGroup) and error.split(BrokenResourceError)[1] is None:
                return  # the client has left its stream, and FastAPI's keep-alive could not write
            answer = for_path(scope["path"], unexpected(error, scope["path"]))
            if not begun:
                await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["raw_path"]) + len(scope["query_string"]) + size > MAX_HEADERS:
            return 431, "headers-too-large", f"the address and headers are larger than {MAX_HEADERS:,} bytes"
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if "*" not in self._hosts and _name(host) not in self._hosts:
            return 421, "wrong-host", "this server does not serve that host; TURNLOG_API_HOSTS lists its names"
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins and origin.partition("://")[2] != host:
            return 403, "wrong-origin", "pages of that origin may not use this server; TURNLOG_API_ORIGINS lists them"
        length = headers.get("content-length", "0")
        most, _ = self._limit_of(scope)
        if not length.isdecimal() or int(length) > most:
            return _too_large(most)
        return None

    def _limit_of(self, scope: Scope) -> tuple[int, float]:
        """Returns the maximum size of a body in bytes, and the seconds it may take, which grow in proportion to the
        size.
        """
        most = self._larger.get(scope["path"], self._max_body)
        return most, BODY_S * max(1, most / self._max_body)


def _too_large(limit: int) -> tuple[int, str, str]:
    return 413, "body-too-large", f"the body is larger than {limit:,} bytes"


class _Body:
    """Limits the size of a body and the time it takes to arrive. JSON is passed on in one piece, as valid Unicode."""

    def __init__(self, receive: Receive, limit: int, seconds: float, is_json: bool) -> None:
        self._receive, self._limit, self._seconds, self._seen = receive, limit, seconds, 0
        self._is_json = is_json
        self._deadline: float | None = asyncio.get_running_loop().time() + seconds

    async def receive(self) -> Message:
        message = await self._next()
        if not self._is_json or message["type"] != "http.request":
            return message
        parts = [message.get("body", b"")]
        while message.get("more_body", False):
            message = await self._next()
            if message["type"] != "http.request":
                return message
            parts.append(message.get("body", b""))
        return {"type": "http.request", "body": valid_json(b"".join(parts)), "more_body": False}

    async def _next(self) -> Message:
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Refused(408, "body-too-slow", f"the body did not arrive within {self._seconds:g} s") from None
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            if self._seen > self._limit:
                raise Refused(*_too_large(self._limit))
            if not message.get("more_body", False):
                self._deadline = None
        return message


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class PromptProtocol(HttpToolsProtocol):
    """Limits what uvicorn does not: the time and size of a request's headers, and the time that a connection stays open
    for the rest of a body after its response. Trailers of a chunked body are not headers of the request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(HEADERS_S, transport.close)
        self._in_head, self._head_size = True, 0

    def data_received(self, data: bytes) -> None:
        if self._head_size > MAX_HEADERS:
            return  # refused; the connection stays open for a moment so that the sender can read why
        super().data_received(data)
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEADERS:
                self.transport.write(TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_size = True, 0
        self._close_late()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._late.cancel()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._close_late()

    def on_message_complete(self) -> None:
        self._late.cancel()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)

    def _close_late(self) -> None:
        self._late.cancel()
        self._late = self.loop.call_later(HEADERS_S, self.transport.close)
