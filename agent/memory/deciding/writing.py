"""Writes to a user's memory thread optimistically: waits for its rows, decides and appends; after a conflict, decides
again.

The events of one call are one atomic batch. The caller chooses their ids. The decision can see which ids are stored
already, so that a repeated call changes nothing if its ids are derived from its content, as in `remember_many`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from turnlog.agent import metrics
from turnlog.agent.runtime import Pool
from turnlog.events import tracing
from turnlog.events.append import MAX_BATCH, deciding_again
from turnlog.events.contracts import REMOVALS, Event, EventData
from turnlog.events.errors import InvalidToken, TurnlogError
from turnlog.events.log import Log
from turnlog.events.publish import Key
from turnlog.events.subjects import check_tenant, memory_thread, thread_token
from turnlog.projectors.engine.duplicates import first_seqs
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.writer import Connection

Clock = Callable[[], datetime]
T = TypeVar("T")
SOURCE = "turnlog/memories"
PROJECTION = "memories"


class MemoriesParked(TurnlogError):
    """An event of the user's memories could not be projected; later events wait for it, so the rows are out of date."""

    code = "memories-parked"


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Place:
    """A memory thread. shadow: name of a trial derivation; None for the user's own memories."""

    tenant: str
    user: str
    shadow: str | None = None

    @classmethod
    def of_thread(cls, tenant: str, user: str, thread: str) -> "Place":
        """Returns the place of a thread id that memory_thread made. Raises InvalidToken if it is not a memory thread of
        the user."""
        first, _, rest = thread.partition("/")
        place = cls(tenant, user, rest.partition("/")[0] if first == "shadow" else None)
        if place.thread != thread:
            raise InvalidToken(f"thread {thread!r} is not a memory thread of user {user!r}")
        return place

    @property
    def thread(self) -> str:
        """Returns the thread's id. Raises InvalidToken."""
        check_tenant(self.tenant)
        return memory_thread(self.user, self.shadow)


@dataclass(frozen=True, slots=True)
class Rows:
    """Access to the rows of a memory thread, which are up to date with the log."""

    log: Log
    conn: Connection
    place: Place
    partition: int

    async def stored(self, ids: Iterable[UUID]) -> dict[UUID, int]:
        """Returns the sequences of the events that are on the log, by id. ids: ids of events to look for."""
        keys = [Key(self.place.tenant, thread_token(self.place.thread), id_) for id_ in ids]
        return {key.id: seq for key, seq in (await first_seqs(self.conn, [self.partition], keys)).items()}

    async def removed_at(self) -> int:
        """Returns the sequence of the thread's last removal; 0 if it was never removed. Raises LogUnavailable."""
        return await self.log.thread_head_of(self.place.tenant, self.place.thread, REMOVALS)


@dataclass(frozen=True, slots=True)
class Decided(Generic[T]):
    """A decision: the events with their ids, in order, and the result to return once they are stored."""

    events: Sequence[tuple[UUID, EventData]]
    result: T


class MemoryWriter:
    """Writes to memory threads; one per process. Calls for the same thread take turns, so that they do not conflict."""

    def __init__(self, log: Log, pool: Pool, clock: Clock = utc_now) -> None:
        self._log, self._pool, self._clock = log, pool, clock
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def write(self, place: Place, decide: Callable[[Rows], Awaitable[Decided[T]]]) -> T:
        """Appends the events that `decide` returns. `decide` is called again after a concurrent append; if it returns
        no events, nothing is appended.

        Raises ValueError for more than MAX_BATCH events, LogUnavailable, NotProjectedInTime, MemoriesParked,
        WrongExpectedVersion after DECIDING_S, and the errors of `decide`.
        """
        with tracing.span("memory write"):
            async with self._turns.setdefault((place.tenant, place.thread), asyncio.Lock()):
                return await deciding_again()(self._write, place, decide)

    async def read(self, place: Place, look: Callable[[Rows], Awaitable[T]]) -> T:
        """Returns the result of `look` on rows that are up to date with the log. Raises LogUnavailable,
        NotProjectedInTime, MemoriesParked, and the errors of `look`."""
        return await self._decide(place, await self._log.thread_head(place.tenant, place.thread), look)

    async def append(self, place: Place, events: Sequence[tuple[UUID, EventData]]) -> None:
        """Appends events that need no decision and may be in any order."""
        await self._append(place, events, None)

    async def _decide(self, place: Place, head: int, decide: Callable[[Rows], Awaitable[T]]) -> T:
        partition = await self._log.partition_of(place.tenant, place.thread, head)
        async with self._pool.connection() as conn:
            if head and not await _is_shown(conn, place, partition, head):
                await wait_for(conn, (PROJECTION,), partition, head)
                await _is_shown(conn, place, partition, head)
            return await decide(Rows(self._log, conn, place, partition))

    async def _write(self, place: Place, decide: Callable[[Rows], Awaitable[Decided[T]]]) -> T:
        head = await self._log.thread_head(place.tenant, place.thread)
        decided = await self._decide(place, head, decide)
        if len(decided.events) > MAX_BATCH:
            raise ValueError(f"{len(decided.events)} events are more than one atomic batch of {MAX_BATCH} can hold")
        if decided.events:
            await self._append(place, decided.events, head)
        return decided.result

    async def _append(self, place: Place, events: Sequence[tuple[UUID, EventData]], expected: int | None) -> None:
        now = self._clock()
        about = {"tenant": place.tenant, "thread": place.thread, "user": place.user}
        made = [Event(id=id_, source=SOURCE, time=now, data=data, **about) for id_, data in events]
        stored = await self._log.append_many(made, expected, fresh=expected is not None)
        for event, written in zip(made, stored, strict=True):
            if not written.duplicate:
                metrics.memory_event(event.data)


async def _is_shown(conn: Connection, place: Place, partition: int, head: int) -> bool:
    """Returns whether the rows are projected up to `head`, in one query. Raises MemoriesParked."""
    rows = await conn.execute(
        "SELECT EXISTS (SELECT FROM projection_positions WHERE build = 'live' AND projection = %(projection)s "
        "AND partition = %(partition)s AND position >= %(head)s), (SELECT seq || ': ' || error FROM dead_letters "
        "WHERE tenant = %(tenant)s AND thread_token = %(token)s AND build = 'live' AND status = 'parked' "
        "AND projection = %(projection)s ORDER BY seq LIMIT 1)",
        {
            **{"projection": PROJECTION, "partition": partition, "head": head},
            **{"tenant": place.tenant, "token": thread_token(place.thread)},
        },
    )
    row = await rows.fetchone()
    assert row is not None
    if row[1] is not None:
        raise MemoriesParked(
            f"an event of the memories of user {place.user!r} could not be projected ({row[1]}), and later ones wait "
            "behind it; `turnlog dead-letters` shows it and can retry or drop it"
        )
    return bool(row[0])
