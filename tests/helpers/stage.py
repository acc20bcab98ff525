"""Plays the real roles on the real servers of a test, with a model server that answers the reactors' prompts."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from helpers.key_rings import KEK
from helpers.openai_bodies import Step
from helpers.openai_server import Kind, OpenAIServer
from helpers.sample_events import turn
from helpers.servers import eventually, rows
from nats.js.errors import NotFoundError
from pydantic import SecretStr

from turnlog.agent.access.throttle.admission import throttle_of
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.roles import playing
from turnlog.consumers.runtime import opened
from turnlog.events.codec import encode
from turnlog.events.contracts import Event
from turnlog.events.log import Log
from turnlog.events.subjects import STREAM, publish_subject

_TASKS = {"You keep": "summary", "Shorten": "compress", "List what": "topics"}


class MemoryServer(OpenAIServer):
    """Answers each task of the reactors with a set answer, and other requests as OpenAIServer does. said: the answer
    for each task. first: answers for the next requests of a task; used before `said`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.said = {"summary": "They planned a trip.", "compress": "A trip.", "topics": '{"trip": 2}'}
        self.first: dict[str, list[Step]] = {}

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        task = task_of(body) if kind == "chat" else kind
        if self.first.get(task):
            return self.first[task].pop(0)
        return Step(text=self.said[task]) if task in self.said else super().next_step(kind, body)

    def asked(self, task: str) -> list[dict[str, Any]]:
        """Returns the requests for a task of the reactors, or for an "answer"."""
        return [body for body in self.bodies("chat") if task_of(body) == task]


def task_of(body: dict[str, Any]) -> str:
    first = str(body["messages"][0]["content"])
    return next((task for beginning, task in _TASKS.items() if first.startswith(beginning)), "answer")


@dataclass(frozen=True, slots=True)
class Stage:
    runtime: Runtime

    async def say(self, first: int, last: int, thread: str = "t", length: int = 1) -> list[int]:
        """Appends the turns `message 1`, `message 2` …, alternately of user and assistant; returns their sequences."""
        turns = [
            turn(" ".join([f"message {n}"] * length), "user" if n % 2 else "assistant", thread, n)
            for n in range(first, last + 1)
        ]
        return [done.seq for done in await self.runtime.log.append_many(turns)]

    async def all(self, kind: str, thread: str = "t") -> list[Any]:
        """Returns the data of the thread's events of one type, in order."""
        return [event.data for event in await self.events(thread) if event.type == kind]

    async def events(self, thread: str = "t") -> list[Event]:
        return [recorded.event async for recorded in self.runtime.log.read_thread("default", thread)]

    async def twice(self, event: Event) -> None:
        """Stores the same event again under another message id, like a retry after the deduplication window."""
        subject = publish_subject(event.tenant, event.thread, event.type)
        await self.runtime.log.nc.jetstream().publish(subject, encode(event))

    async def bad(self, kind: str, thread: str = "t") -> None:
        """Publishes an undecodable event of this type."""
        await self.runtime.log.nc.jetstream().publish(publish_subject("default", thread, kind), b"{")

    async def rest(self, durable: str = "memory") -> None:
        """Waits until the consumer has processed all of its events and everything is projected."""
        await wait_until_idle(self.runtime.log, durable)
        await self.runtime.wait_until_projected()

    async def until(self, kind: str, count: int, thread: str = "t", timeout_s: float = 180.0) -> list[Any]:
        """Waits until the thread has so many events of a type and returns their data."""

        async def are_there() -> bool:
            return len(await self.all(kind, thread)) >= count

        await eventually(are_there, timeout_s)
        await self.runtime.wait_until_projected()
        return await self.all(kind, thread)

    async def rows(self, query: str, *params: Any) -> list[Any]:
        async with self.runtime.pool.connection() as conn:
            return await rows(conn, query, *params)


async def wait_until_idle(log: Log, durable: str) -> None:
    """Waits until the consumer has processed all of its events. The number of pending events lags behind an append, so
    the consumer must also have received its last event.
    """
    js = log.nc.jetstream()
    subject = (await js.consumer_info(STREAM, durable)).config.filter_subject
    assert subject is not None
    try:
        last = (await js.get_last_msg(STREAM, subject)).seq or 0
    except NotFoundError:
        last = 0

    async def is_idle() -> bool:
        info = await js.consumer_info(STREAM, durable)
        return info.delivered.stream_seq >= last and not info.num_pending and not info.num_ack_pending

    await eventually(is_idle)


class Play(Protocol):
    """Plays the given roles, or the usual roles of the test: `async with play("agent", model_timeout_s=1.0) as
    stage`."""

    def __call__(self, *roles: str, **settings: Any) -> AbstractAsyncContextManager[Stage]: ...


def player(nats_url: str, database_url: str, usual: Sequence[str], **options: Any) -> Play:
    # "never": by default, background calls to a model on the same machine wait for answers. Tests of this override it.
    usually = {"kek": SecretStr(KEK), "answers_first": "never"}

    def play(*roles: str, **more: Any) -> AbstractAsyncContextManager[Stage]:
        settings = Settings(nats_url=nats_url, database_url=database_url, **{**usually, **options, **more})
        return on_stage(settings, roles or usual)

    return play


@asynccontextmanager
async def on_stage(settings: Settings, roles: Sequence[str]) -> AsyncIterator[Stage]:
    async with opened(settings, "test") as runtime, playing(runtime, roles):
        runtime.cached(throttle_of).patience_s = 30.0  # so that requests are counted on a busy machine too
        yield Stage(runtime)
