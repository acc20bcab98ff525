"""Divides the partitions of a log among workers, so that each holds about the same number.

Each worker holds a shared advisory lock while it lives. A worker counts these locks, takes free partitions up to its
share, and releases a partition when it holds too many. The engine's locks decide who owns a partition, so a wrong count
affects the balance but never the order.
"""

import asyncio
import logging
import math

import psycopg

from turnlog.events.errors import TurnlogError
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.tasks import pause
from turnlog.projectors.engine.database import connect, end_frozen
from turnlog.projectors.engine.writer import Connection

logger = logging.getLogger("turnlog.projectors")
MEMBERS = 0x7475726E
COUNT_EVERY_S = 1.0
_COUNT = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND mode = 'ShareLock'
AND classid = %s AND objid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class Share:
    """Decides how many of `partitions` this worker holds. Its runners call take() before they hold a partition and
    keep() while they hold it."""

    def __init__(self, database_url: str, partitions: int) -> None:
        self._url, self._partitions = database_url, partitions
        self._limit = 0
        self._held: set[int] = set()

    @property
    def held(self) -> frozenset[int]:
        """Returns the partitions that this worker holds now."""
        return frozenset(self._held)

    def room(self) -> bool:
        return len(self._held) < self._limit

    def take(self, partition: int) -> bool:
        """Takes the partition and returns True; returns False if another runner of this worker took the last free
        place."""
        if self.room():
            self._held.add(partition)
        return partition in self._held

    def keep(self, partition: int) -> bool:
        """Returns whether the partition stays held; if the worker holds too many, gives the partition up and returns
        False."""
        if len(self._held) > self._limit:
            self._held.discard(partition)
        return partition in self._held

    def leave(self, partition: int) -> None:
        self._held.discard(partition)

    async def run(self, stop: asyncio.Event, beat: Heartbeat | None = None) -> None:
        """Counts the workers until `stop` is set. While Postgres cannot be reached, the last count is kept."""
        while not stop.is_set():
            try:
                async with await connect(self._url) as conn:
                    await conn.execute("SELECT pg_advisory_lock_shared(%s, 1)", (MEMBERS,))
                    await self._count(conn, stop, beat)
            except (psycopg.Error, TurnlogError, OSError) as error:
                logger.warning("cannot count the projector workers: %s", error)
                await pause(stop, COUNT_EVERY_S)

    async def _count(self, conn: Connection, stop: asyncio.Event, beat: Heartbeat | None) -> None:
        while not stop.is_set():
            if beat is not None:
                beat.beat()
            await end_frozen(conn, MEMBERS, 1)
            row = await (await conn.execute(_COUNT, (MEMBERS,))).fetchone()
            self._limit = math.ceil(self._partitions / max(1, row[0] if row else 1))
            await pause(stop, COUNT_EVERY_S)
