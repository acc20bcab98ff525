"""Sends requests to a turnlog server, repeats them if that is safe, and raises its errors as turnlog's own."""

import asyncio
import functools
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

import httpx2
from pydantic import TypeAdapter
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_delay, wait_random_exponential

from turnlog.agent.answering.asking import NoAnswer
from turnlog.consumers.sync_bridge import CLOSED, LoopClosed
from turnlog.events.errors import TurnlogError, cause
from turnlog.events.texts import storable

PAGE = 200
CONNECT_S, ANSWER_S = 10.0, 70.0
UNAVAILABLE = 503
T = TypeVar("T")
_PAUSE = wait_random_exponential(multiplier=0.1, max=5)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def decoded(kind: type[T], document: Any) -> T:
    """Returns parsed JSON as a value of this type."""
    known: Any = kind
    value: T = _adapter(known).validate_python(document)
    return value


class ServerUnavailable(TurnlogError):
    """The server cannot be reached, or the connection broke; a write may or may not have happened."""

    code = "server-unavailable"


class Turn:
    """Marks whether a wrapped client of this program is answering in a thread; others wait for `changed`."""

    def __init__(self) -> None:
        self.is_taken, self.changed = False, asyncio.Condition()


class Http:
    """Sends requests to a server with a token. patience_s: how long a request is repeated while the server is
    unavailable. turns: path of a thread → its Turn."""

    def __init__(self, url: str, key: str, patience_s: float) -> None:
        self.turns: WeakValueDictionary[str, Turn] = WeakValueDictionary()
        self.url, self._patience_s = url.rstrip("/"), patience_s
        self.client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key.strip()}"},
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
        )

    async def call(
        self,
        method: str,
        path: str,
        returns: type[T],
        *,
        user: str | None = None,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        write_id: UUID | None = None,
    ) -> T:
        """Sends a request and returns the response as a value of type `returns`.

        write_id: the server does repeated writes with the same id only once; by default each call has its own id.
        Raises the server's errors, ServerUnavailable.
        """
        self._refuse_closed()
        request: dict[str, Any] = {"headers": _headers(user, write_id)}
        request["params"] = {name: value for name, value in (params or {}).items() if value is not None}
        if body is not None:
            request |= {"content": body} if isinstance(body, bytes) else {"json": storable(body)}
        when, stop = retry_if_exception(_passing), stop_after_delay(self._patience_s)
        again = AsyncRetrying(stop=stop, wait=_pause, retry=when, reraise=True)
        try:
            response: httpx2.Response = await again(self._answer, method, path, request)
        except httpx2.TransportError as error:
            raise self._unavailable(error) from error
        return decoded(returns, response.json() if response.content else None)

    async def pages(
        self, path: str, item: type[T], limit: int, user: str | None, cursor: str | None = None, **params: Any
    ) -> list[T]:
        """Returns up to `limit` items of a list, read page by page. newest=True: each page is put before those read so
        far. cursor: of the first page to read."""
        items: list[Any] = []
        while True:
            asked = params | {"limit": min(PAGE, max(1, limit - len(items))), "cursor": cursor}
            page = await self.call("GET", path, dict[str, Any], user=user, params=asked)
            items = page["items"] + items if params.get("newest") else items + page["items"]
            cursor = page["next"]
            if cursor is None or len(items) >= limit:
                return [decoded(item, document) for document in items[: max(0, limit)]]

    async def events(
        self, path: str, body: Any, user: str | None, ends: Iterable[str]
    ) -> AsyncGenerator[httpx2.ServerSentEvent]:
        """Yields the events of a stream, which begins with POST …/stream and continues with GET …/{seq of `started`}.

        A stream that breaks off is continued after its last event. ends: names of its final events.
        """
        self._refuse_closed()
        loop, failures = asyncio.get_running_loop(), 0
        deadline = loop.time() + self._patience_s
        request: dict[str, Any] = {"method": "POST", "url": f"{path}/stream", "json": storable(body)}
        headers = _headers(user, None)
        while True:
            error: Exception = httpx2.RemoteProtocolError("the stream ended before the answer")
            try:
                async with self.client.stream(**request, headers=headers) as response:
                    await _check(response)
                    async for event in httpx2.EventSource(response, max_event_size=None):
                        if event.event == "error":
                            raise error_of(json.loads(event.data))
                        if event.event == "started":
                            request = {"method": "GET", "url": f"{path}/{json.loads(event.data)['seq']}"}
                        headers["Last-Event-ID"] = event.id
                        deadline, failures = loop.time() + self._patience_s, 0
                        yield event
                        if event.event in ends:
                            return
            except (httpx2.TransportError, TurnlogError) as caught:
                if not _passing(caught):
                    raise
                error = caught
            if loop.time() > deadline:
                raise error if isinstance(error, TurnlogError) else self._unavailable(error)
            failures += 1
            await asyncio.sleep(min(5.0, 0.1 * 2**failures))

    def _refuse_closed(self) -> None:
        if self.client.is_closed:
            raise LoopClosed(CLOSED)

    async def _answer(self, method: str, path: str, request: dict[str, Any]) -> httpx2.Response:
        response = await self.client.request(method, path, **request)
        await _check(response)
        return response

    def _unavailable(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(
            f"the turnlog server at {self.url} cannot be reached ({cause(error)}); `turnlog up` starts one"
        )


def error_of(problem: Mapping[str, Any]) -> TurnlogError:
    """Returns the error of the class with the problem's code, or TurnlogError if this process has no such class.

    It has `status`, `retry_after_s` and `category`, and `candidates` if words match several memories.
    """
    kind = _classes(TurnlogError).get(problem["code"], TurnlogError)
    error = kind.__new__(kind, problem["detail"])
    vars(error).update(code=problem["code"], status=problem["status"], retry_after_s=problem.get("retryAfter"))
    vars(error).update(category=problem.get("category"))
    if candidates := problem.get("candidates"):
        vars(error).update(candidates=tuple(candidates))
    return error


def _classes(base: type[TurnlogError]) -> dict[str, type[TurnlogError]]:
    classes = {base.code: base}
    for kind in base.__subclasses__():
        classes = _classes(kind) | classes
    return classes


async def _check(response: httpx2.Response) -> None:
    """Raises the error that the response reports, if any."""
    if not response.is_error:
        return
    try:
        error = error_of(json.loads(await response.aread()))
    except (ValueError, KeyError, TypeError):
        said = f"{response.url} answered {response.status_code} {response.reason_phrase}; is that a turnlog server?"
        raise ServerUnavailable(said) from None
    raise error


def _headers(user: str | None, write_id: UUID | None) -> dict[str, Any]:
    headers: dict[str, Any] = {"Idempotency-Key": str(write_id or uuid4())}
    return headers if user is None else headers | {"X-Turnlog-User": user.encode()}


def _passing(error: BaseException) -> bool:
    """Returns True if repeating the request may help. It does not after NoAnswer, because the server has already tried
    for as long as allowed."""
    if isinstance(error, NoAnswer):
        return False
    return isinstance(error, httpx2.TransportError) or getattr(error, "status", None) == UNAVAILABLE


def _pause(state: RetryCallState) -> float:
    """Returns the seconds to wait before the next attempt: as the server asks, or else longer each time."""
    error = state.outcome.exception() if state.outcome else None
    return getattr(error, "retry_after_s", None) or _PAUSE(state)
