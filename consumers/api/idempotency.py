"""Stores the responses of writes with an Idempotency-Key, and sends the same response when a write is repeated."""

import asyncio
import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnlog.agent.access.idempotency import Write, begin_write, give_up, hold, keep_answer
from turnlog.agent.runtime import Runtime
from turnlog.consumers.api.paths import route_template
from turnlog.events.tasks import cancel

WRITE, HOLDING, FAILED = "turnlog.write", "turnlog.holding", "turnlog.failed"
REPEATED = b"idempotent-replayed"
# Routes that ignore the key: they only read (by POST, because queries can be long), or can be repeated without harm.
WITHOUT_KEY = frozenset(
    {
        "/api/threads/{thread}/answers/{seq}/cancel",
        "/api/recall",
        "/api/threads/{thread}/context",
        "/v1/embeddings",
        "/v1/responses/compact",
        "/short-memory/query",
        "/ai-agent/refresh-context",
    }
)
# Besides the body, these headers determine the effect of a write.
HEADERS = (
    *("if-match", "x-turnlog-thread", "x-turnlog-memory", "x-turnlog-timezone"),
    *("x-openwebui-chat-id", "x-openwebui-task", "x-conversation-id", "x-sm-conversation-id"),
)
# A repeated request to these routes joins the running answer, also as a stream.
JOINING = frozenset(
    {
        "/api/threads/{thread}/answers",
        "/api/threads/{thread}/answers/stream",
        "/api/chat/stream",
        "/ai-agent/chat",
        "/ai-agent/conversations/{id}/stream",
    }
)
EVENTS = "text/event-stream"


class Repeated(Exception):
    """The write was already done. This is not an error: the response is that of the first request."""

    def __init__(self, response: Response) -> None:
        self.response = response


def may_repeat(request: Request) -> bool:
    """Returns True if the request changes something, so that a repetition of it must be detected."""
    return request.method not in ("GET", "HEAD", "OPTIONS") and route_template(request.scope) not in WITHOUT_KEY


async def begin(request: Request, runtime: Runtime, write: Write) -> None:
    """Records that the write is running. Raises Repeated, KeyReused, WriteUnderWay."""
    joins = route_template(request.scope) in JOINING
    answer = await begin_write(runtime, write, joins=joins)
    if answer is not None:
        raise Repeated(_response(answer))
    request.scope[WRITE] = (runtime, write)
    if not joins:
        request.scope[HOLDING] = asyncio.create_task(hold(runtime, write))


def failed(request: Request) -> None:
    """Marks a response that began as a success but reports an error, so that it is not stored."""
    request.scope[FAILED] = True


class Answers:
    """ASGI middleware that stores the response of a write with a key before the client has received all of it. A failed
    write is not stored, so that it can be sent again."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        answer = _Answer(scope, send)
        try:
            await self._app(scope, receive, answer.send)
        finally:
            if HOLDING in scope:
                await cancel(scope[HOLDING])
            if WRITE in scope and not answer.ended:
                await give_up(*scope[WRITE])


class _Answer:
    """A response that is stored for repeated requests. ended: the write is not given up, because its response was
    stored, or is a stream that repeated requests join."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message = {}
        self._body: list[bytes] = []
        self.ended = False

    async def send(self, message: Message) -> None:
        if WRITE in self._scope:
            await self._note(message)
        await self._send(message)

    async def _note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            self.ended = message["status"] < 400 and self._is_joined(message)
        elif not self.ended and self._start["status"] < 400:
            self._body.append(message.get("body", b""))
            if not message.get("more_body", False) and FAILED not in self._scope:
                runtime, write = self._scope[WRITE]
                await keep_answer(runtime, write, _document(self._start, b"".join(self._body)))
                self.ended = True

    def _is_joined(self, start: Message) -> bool:
        kind = dict(start["headers"]).get(b"content-type", b"").decode("latin-1")
        return kind.startswith(EVENTS) and route_template(self._scope) in JOINING


def _document(start: Message, body: bytes) -> bytes:
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in start["headers"]]
    return json.dumps([start["status"], headers]).encode() + b"\n" + body


def _response(document: bytes) -> Response:
    head, _, body = document.partition(b"\n")
    status, headers = json.loads(head)
    response = Response(body, status)
    response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    response.raw_headers.append((REPEATED, b"true"))
    return response
