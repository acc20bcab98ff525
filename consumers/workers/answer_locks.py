"""Locks that keep two workers from paying for the same answer, all held by one connection of the process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from turnlog.agent.later import Later
from turnlog.agent.runtime import Pool
from turnlog.events.contracts import Event
from turnlog.projectors.engine.locks import LockFor, work_lock
from turnlog.projectors.engine.writer import Connection

BUSY_S = 2.0
PATIENT = 5


@dataclass(slots=True)
class _Shared:
    """A connection of the pool, returned when its last user is done."""

    conn: Connection
    pooled: contextlib.AsyncExitStack
    users: int = 0


@dataclass(slots=True)
class AnswerLocks:
    """Hundreds of answers wait for the model at once, so none has a connection of its own for its lock.

    A session may take its own lock twice, so what this process holds is also in `_held`. If the connection is lost,
    its locks are lost, and answers under way continue: the log is read again before an answer is appended.
    """

    pool: Pool
    _held: set[str] = field(default_factory=set)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _shared: _Shared | None = None

    @contextlib.asynccontextmanager
    async def alone(self, request: Event, attempt: int) -> AsyncIterator[None]:
        """Locks the request while the block runs; a dead worker's lock ends with its connection. Raises Later.

        If a worker's progress acks are late, its request is delivered to a second one; without the lock both would
        pay for a model's answer, and one would be discarded. After PATIENT attempts the second one continues without
        the lock, because the holder may be frozen.
        """
        async with self._lock(f"answer/{request.tenant}/{request.thread}/{request.id}") as held:
            if not held and attempt <= PATIENT:
                raise Later(BUSY_S, f"another worker is at request {request.id}")
            yield

    @contextlib.asynccontextmanager
    async def _lock(self, name: str) -> AsyncIterator[bool]:
        if name in self._held:
            yield False
            return
        self._held.add(name)
        try:
            async with self._connection() as conn, work_lock(conn, LockFor.ANSWER, name) as held:
                yield held
        finally:
            self._held.discard(name)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """The shared connection; another one after it was lost."""
        async with self._opening:
            shared = self._shared
            if shared is None or shared.conn.closed:
                pooled = contextlib.AsyncExitStack()
                shared = self._shared = _Shared(await pooled.enter_async_context(self.pool.connection()), pooled)
            shared.users += 1
        try:
            yield shared.conn
        finally:
            shared.users -= 1
            if not shared.users:
                if self._shared is shared:
                    self._shared = None
                await shared.pooled.aclose()
