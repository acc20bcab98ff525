"""Limits how far a user's appended turns run ahead of the projectors, so that one user cannot delay others' events.

A partition is projected in the order of its log, so a user who appends faster than it is projected delays all others.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import psycopg
from cachetools import LRUCache

from turnlog.agent.runtime import Runtime
from turnlog.events.append import MAX_BATCH
from turnlog.events.contracts import Event
from turnlog.projectors.engine.lag import NotProjectedInTime

AHEAD = MAX_BATCH
PATIENCE_S = 5.0
USERS = 10_000
_READ = ("messages",)


@dataclass(slots=True)
class Pace:
    """Counts the events that this process has appended for a user since all were last known to be projected. thread:
    the thread of the last event."""

    events: int = 0
    thread: str = ""
    order: asyncio.Lock = field(default_factory=asyncio.Lock)


class Paces(LRUCache[tuple[str, str | None, str], Pace]):
    """The paces by tenant and user; for turns without a user, by tenant and thread."""

    def __init__(self, _: Runtime) -> None:
        super().__init__(USERS)
        self.patience_s = PATIENCE_S


@contextlib.asynccontextmanager
async def in_pace(runtime: Runtime, events: Sequence[Event]) -> AsyncIterator[None]:
    """Runs the block, which appends events of a user, once at most AHEAD of the user's events wait for a projector.

    The user's blocks with several events run one after another. After PATIENCE_S the block runs anyway, so that turns
    are stored while Postgres or the projectors are unavailable.
    """
    paces, first = runtime.cached(Paces), events[0]
    pace = paces.setdefault((first.tenant, first.user, "" if first.user else first.thread), Pace())
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(pace.order)
        if pace.events and pace.events + len(events) > AHEAD:
            with contextlib.suppress(NotProjectedInTime, TimeoutError, psycopg.OperationalError):
                async with asyncio.timeout(paces.patience_s):
                    await runtime.wait_until_thread_projected(first.tenant, pace.thread, _READ, without=_READ)
            pace.events = 0
        pace.events, pace.thread = pace.events + len(events), first.thread
        if len(events) == 1:
            await held.aclose()  # the disk sync is shared with other appends of the user
        yield
