"""Takes advisory locks that many tasks of one process hold for long, all on one connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from turnlog.agent.runtime import Pool
from turnlog.projectors.engine.locks import LockFor, work_lock
from turnlog.projectors.engine.writer import Connection


@dataclass(slots=True)
class _Shared:
    """A connection of the pool, which is returned when its last user is done."""

    conn: Connection
    pooled: contextlib.AsyncExitStack
    users: int = 0


@dataclass(slots=True)
class SharedLocks:
    """Takes locks on one shared connection, because hundreds of answers may wait for the model at once.

    Postgres lets a session take its own lock twice, so `_held` also lists the locks of this process. If the connection
    is lost, its locks are lost; locks of a killed process are free at once.
    """

    pool: Pool
    _held: set[str] = field(default_factory=set)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _shared: _Shared | None = None

    @contextlib.asynccontextmanager
    async def lock(self, work: LockFor, name: str) -> AsyncIterator[bool]:
        """Takes the lock while the block runs; yields False if another task or process holds it."""
        if name in self._held:
            yield False
            return
        self._held.add(name)
        try:
            async with self._connection() as conn, work_lock(conn, work, name) as held:
                yield held
        finally:
            self._held.discard(name)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """Yields the shared connection, or a new one after it was lost."""
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
