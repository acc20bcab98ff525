"""Workers that share the partitions of a log: each holds about as many as the others.

A worker counts its fellows by a shared advisory lock that every one of them holds for as long as it lives, takes
free partitions up to its share, and lets one go when it has more. Ownership itself stays with the engine's locks:
a wrong count costs balance, never order.
"""

import asyncio
import contextlib
import logging
import math

import psycopg

from turnlog.events.errors import TurnlogError
from turnlog.projectors.database import connect
from turnlog.projectors.writer import Connection

logger = logging.getLogger("turnlog.projectors")
MEMBERS = 0x7475726E
COUNT_EVERY_S = 1.0
_COUNT = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND mode = 'ShareLock'
AND classid = %s AND objid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class Share:
    """How many of `partitions` this worker should hold; its runners ask before they take and while they hold."""

    def __init__(self, database_url: str, partitions: int) -> None:
        self._url, self._partitions = database_url, partitions
        self._limit = 0
        self._held: set[int] = set()

    @property
    def held(self) -> frozenset[int]:
        """The partitions that this worker holds now."""
        return frozenset(self._held)

    def room(self) -> bool:
        return len(self._held) < self._limit

    def take(self, partition: int) -> bool:
        """False when another runner of this worker took the last place first."""
        if self.room():
            self._held.add(partition)
        return partition in self._held

    def keep(self, partition: int) -> bool:
        """False when the worker holds too many; the partition is given up with that answer."""
        if len(self._held) > self._limit:
            self._held.discard(partition)
        return partition in self._held

    def leave(self, partition: int) -> None:
        self._held.discard(partition)

    async def run(self, stop: asyncio.Event) -> None:
        """Counts until stop. While Postgres is away the last count holds."""
        while not stop.is_set():
            try:
                async with await connect(self._url) as conn:
                    await conn.execute("SELECT pg_advisory_lock_shared(%s, 1)", (MEMBERS,))
                    await self._count(conn, stop)
            except (psycopg.Error, TurnlogError, OSError) as error:
                logger.warning("cannot count the projector workers: %s", error)
                await _pause(stop)

    async def _count(self, conn: Connection, stop: asyncio.Event) -> None:
        while not stop.is_set():
            row = await (await conn.execute(_COUNT, (MEMBERS,))).fetchone()
            self._limit = math.ceil(self._partitions / max(1, row[0] if row else 1))
            await _pause(stop)


async def _pause(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(COUNT_EVERY_S):
            await stop.wait()
