"""Simulates several processes that use the same sessions, with short functions to write and read them."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from nats.js.errors import NotFoundError

from turnlog.agent.conversations.sessions.sessions import Sessions
from turnlog.agent.runtime import Pool
from turnlog.events.contracts import (
    EventData,
    SegmentCheckpointed,
    SegmentRules,
    SessionCreated,
    SessionUpdated,
    TurnRecorded,
)
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.events.subjects import SESSION_BUCKET, session_key
from turnlog.projectors.models.sessions.state import SessionState

Settled = Callable[..., Awaitable[None]]
KV_STREAM = f"KV_{SESSION_BUCKET}"
THREADS = ["t", "线 c", "x" * 300]


class Processes:
    """The sessions of several processes on one log and one database."""

    def __init__(self, log: Log, pool: Pool, stack: AsyncExitStack) -> None:
        self.log, self.pool, self._stack = log, pool, stack
        self.reads: list[tuple[str, float]] = []

    async def process(self) -> Sessions:
        return await self._stack.enter_async_context(
            Sessions(self.log, self.pool, "default", lambda level, seconds: self.reads.append((level, seconds)))
        )

    async def reconnect(self, nats_url: str) -> None:
        self.log = await Log.connect(nats_url, StreamOptions())
        self._stack.push_async_callback(self.log.close)

    async def empty_bucket(self) -> None:
        await self.log.nc.jetstream().purge_stream(KV_STREAM)

    async def in_bucket(self, thread: str = "t") -> bytes | None:
        try:
            message = await self.log.nc.jetstream().get_last_msg(KV_STREAM, f"$KV.{SESSION_BUCKET}.{key(thread)}")
        except NotFoundError:
            return None
        return message.data or None


def key(thread: str) -> str:
    return session_key("default", thread)


def turn_data(text: str = "hello", role: str = "user", **more: Any) -> TurnRecorded:
    return TurnRecorded.model_validate({"role": role, "content": text, **more})


def contents(state: SessionState) -> list[Any]:
    return [message.content for message in state.segment]


def slots(**agent_slots: Any) -> Sequence[EventData]:
    return [SessionUpdated(global_state={"agent_slots": agent_slots})]


async def conversation(sessions: Sessions, thread: str = "t") -> SessionState:
    created = SessionCreated(rules=SegmentRules(recent_turns=3), user_snapshot={"name": "安"})
    await sessions.create(thread, created, user="ann")
    await sessions.record(
        thread, [turn_data("I am dizzy."), turn_data("Since when?", "assistant", agent="doctor")], user="ann"
    )
    await sessions.change(thread, lambda state: slots(doctor={"turn": state.turn_count, "at": 1.5}))
    covered = (await sessions.get(thread)).segment[0].seq
    ended = SegmentCheckpointed(summary="D.", recent_turns=1, covered_seq=covered, turns_covered=1, trigger="manual")
    return await sessions.change(thread, lambda state: [ended])
