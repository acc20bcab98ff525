"""Answers in progress in this process. A client may disconnect and come back; the answer is made nevertheless."""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

import anyio
from fastapi import Depends, Request
from fastapi.sse import ServerSentEvent

from turnlog.agent.access.throttle.admission import admitted
from turnlog.agent.access.throttle.fair_share import in_share
from turnlog.agent.answering.asking import AnswerPiece, NoAnswer, QuestionStored, ask
from turnlog.agent.answering.fallback import Locale
from turnlog.agent.team.agents import check_agent
from turnlog.agent.team.configured import entry_agent
from turnlog.consumers.api.principal import Principal, identify
from turnlog.consumers.api.problems import Stopping, language_of, problem_of
from turnlog.events.errors import TurnlogError
from turnlog.events.tasks import cancel

T = TypeVar("T")
KEPT_S = 120.0
MOST_STREAMS = 20
# The texts of Stopping for an answer that is running: an agent goes on elsewhere, a model's answer for /v1 is lost.
RECORDED = (
    "the server is stopping; the answer is recorded nevertheless, so ask for the rest in a moment",
    "服务器正在停止，但这个回答仍会保存；请稍后读取其余部分",
)
LOST = (
    "the server is stopping, and this answer is not recorded; ask again in a moment",
    "服务器正在停止，这个回答没有保存；请稍后再问",
)
# The response of an operation that may send events. itemSchema, known to OpenAPI 3.2 and FastAPI, describes one event.
_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
    "required": ["data"],
}
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"itemSchema": _EVENT}}}}


@asynccontextmanager
async def throttled(
    caller: Principal, thread: str | None, agent: str | None = None, *, embeds: bool = False
) -> AsyncIterator[None]:
    """Holds one of the caller's slots while the block runs. embeds: whether it counts for the quota of embeddings.

    Raises TooManyWaiting, TooManyAtOnce, RateLimited, QuotaExceeded, NotCounted.
    """
    async with AsyncExitStack() as stack:
        async with in_share(*caller.person, "asks"):
            agent = agent or entry_agent(caller.runtime)
            slot = admitted(*caller.person, caller.identity.role, thread, agent, embeds=embeds)
            await stack.enter_async_context(slot)
        yield


async def until(stopping: asyncio.Event, items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Yields the items as they arrive until the event is set, for endless streams."""
    waiting: set[asyncio.Future[Any]] = {asyncio.create_task(stopping.wait())}
    try:
        while not stopping.is_set():
            following = asyncio.ensure_future(anext(items))
            waiting.add(following)
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            waiting.remove(following)
            try:
                yield following.result()
            except StopAsyncIteration:
                return
    finally:
        # When a client leaves, anyio cancels every further wait too, and the items would never be closed.
        with anyio.CancelScope(shield=True):
            await cancel(*waiting)
            await items.aclose()


class TooManyStreams(TurnlogError):
    """A user has as many open streams and WebSockets as allowed."""

    code = "too-many-streams"


@contextmanager
def one_of_few(app: Any, caller: Principal) -> Iterator[None]:
    """Counts a stream or WebSocket of the caller while the block runs. Raises TooManyStreams."""
    open_: Counter[tuple[str, str]] = app.state.open
    user = (caller.tenant, caller.user)
    if open_[user] >= MOST_STREAMS:
        raise TooManyStreams(f"you have {MOST_STREAMS} streams and WebSockets open in this process; close one")
    open_[user] += 1
    try:
        yield
    finally:
        open_[user] -= 1
        if not open_[user]:
            del open_[user]


def counted(caller: Annotated[Principal, Depends(identify)], request: Request) -> Iterator[None]:
    with one_of_few(request.app, caller):
        yield


OF_FEW = [Depends(counted)]


class Running(Generic[T]):
    """Collects the pieces of one answer; any number of readers follow them. when_stopped: the texts of the error that
    they get if the server stops first."""

    def __init__(self, pieces: AsyncIterator[T], when_stopped: tuple[str, str] = RECORDED) -> None:
        self.id = secrets.token_hex(4)
        self.pieces: list[T] = []
        self.ended = False
        self.error: Exception | None = None
        self._when_stopped = when_stopped
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._collect(pieces), name=f"answer-{self.id}")

    async def asked(self) -> QuestionStored:
        """Waits until the request is on the log, and returns it. Raises the errors of asking."""
        async for _, piece in self.read():
            if isinstance(piece, QuestionStored):
                return piece
        raise AssertionError("the first piece is the question")

    async def read(self, after: int = 0) -> AsyncGenerator[tuple[int, T]]:
        """Yields pieces after number `after`, numbered from 1, as they arrive. Raises the error of asking."""
        while True:
            while after < len(self.pieces):
                after += 1
                yield after, self.pieces[after - 1]
            if self.ended:
                break
            await self._more.wait()
        if self.error is not None:
            raise self.error

    async def _collect(self, pieces: AsyncIterator[T]) -> None:
        try:
            async for piece in pieces:
                self.pieces.append(piece)
                self._wake()
        except asyncio.CancelledError:
            self.error = Stopping(*self._when_stopped)
            raise
        except Exception as error:  # the error is raised in each reader instead
            self.error = error
        finally:
            self.ended = True
            self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


class Streams:
    """Running answers by tenant, thread, and the question's id or the request's sequence. They are kept for KEPT_S
    after their end, so that a client can come back."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str, UUID | int], Running[AnswerPiece]] = {}
        self._others: set[Running[Any]] = set()
        self._sent: dict[bytes, tuple[UUID, Running[Any]]] = {}

    async def ask(
        self,
        caller: Principal,
        thread: str,
        text: str,
        model: str | None,
        turn_id: UUID,
        agent: str | None = None,
    ) -> tuple[QuestionStored, Running[AnswerPiece]]:
        """Returns the request and its answer. A question that is sent again joins the running answer.

        Raises NotFound, the errors of `throttled`, and errors that occur before the question is on the log.
        """
        async with in_share(*caller.person, "asks"):
            place = await caller.may_begin(thread, "member")
        await check_agent(caller.runtime, caller.tenant, agent)
        sent = (caller.tenant, place[2], turn_id)
        running = self._running.get(sent)
        if running is None or running.error is not None:
            about: dict[str, Any] = {"user": caller.user, "model": model, "agent": agent, "turn_id": turn_id}
            pieces = ask(*place, text, **about, admission=throttled(caller, place[2], agent))
            running = self._running[sent] = Running(pieces)
            running.task.add_done_callback(partial(self._ended, running))
        asked = await asyncio.shield(running.asked())
        self._running[caller.tenant, asked.thread, asked.seq] = running
        return asked, running

    def _ended(self, running: Running[Any], _: asyncio.Task[None]) -> None:
        asyncio.get_running_loop().call_later(KEPT_S, self._drop, running)

    def _drop(self, running: Running[Any]) -> None:
        self._running = {key: other for key, other in self._running.items() if other is not running}
        self._sent = {request: sent for request, sent in self._sent.items() if sent[1] is not running}

    def run(
        self, pieces: AsyncIterator[T], when_stopped: tuple[str, str], request: bytes | None, id_: UUID
    ) -> Running[T]:
        """Begins an answer that is made even if its client disconnects. when_stopped: as in Running. request: the key
        by which `sent` finds it, if it has one. id_: the answer's own id.
        """
        running = Running(pieces, when_stopped)
        self._others.add(running)
        running.task.add_done_callback(lambda _: self._others.discard(running))
        if request is not None:
            self._sent[request] = (id_, running)
            running.task.add_done_callback(partial(self._ended, running))
        return running

    def sent(self, request: bytes) -> tuple[UUID, Running[Any]] | None:
        """Returns the answer to the same request, if it is running or ended within KEPT_S."""
        return self._sent.get(request)

    def find(self, tenant: str, thread: str, seq: int) -> Running[AnswerPiece] | None:
        return self._running.get((tenant, thread, seq))

    def under_way(self, tenant: str, thread: str) -> list[tuple[int, Running[AnswerPiece]]]:
        """Returns the answers of a conversation that have not ended, with the sequences of their requests."""
        return [
            (seq, running)
            for (*place, seq), running in self._running.items()
            if place == [tenant, thread] and isinstance(seq, int) and not running.ended
        ]

    async def close(self) -> None:
        """Ends the streams of running answers. Agents' answers are on the log, or will be; an answer that a model
        makes for /v1 is lost."""
        tasks = [running.task for running in (*self._running.values(), *self._others) if not running.ended]
        await cancel(*tasks)


@dataclass(frozen=True, slots=True)
class AnswerUnderWay:
    """An answer whose question is on the log, before its first event is sent. seq: the sequence of the request. locale:
    the language of messages for people."""

    caller: Principal
    thread: str
    seq: int
    agent: str
    running: Running[AnswerPiece]
    locale: Locale


async def ask_agent(
    request: Request,
    caller: Principal,
    thread: str,
    text: str,
    turn_id: UUID,
    *,
    model: str | None = None,
    agent: str | None = None,
) -> AnswerUnderWay:
    """Asks turnlog's agent, or another agent of the tenant. Raises the errors of `Streams.ask`."""
    streams: Streams = request.app.state.streams
    agent = agent and agent.lower()
    asked, running = await streams.ask(caller, thread, text, model, turn_id, agent)
    agent = agent or entry_agent(caller.runtime)
    return AnswerUnderWay(caller, asked.thread, asked.seq, agent, running, language_of(request))


async def server_sent(
    events: AsyncGenerator[ServerSentEvent], locale: Locale, *, only_without_answer: bool = False
) -> AsyncGenerator[ServerSentEvent]:
    """Yields the events of an answer. An error is the last event, `error`, with the problem and a message for people.

    only_without_answer: errors have that message only if they say why there is no answer.
    """
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except TurnlogError as error:
        shown_in = locale if isinstance(error, NoAnswer) or not only_without_answer else None
        yield ServerSentEvent(event="error", raw_data=bytes(problem_of(error, shown_in).body).decode())
