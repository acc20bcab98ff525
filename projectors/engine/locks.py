"""Postgres advisory locks that keep two workers from doing the same work."""

import contextlib
from collections.abc import AsyncIterator
from enum import IntEnum

import psycopg

from turnlog.projectors.engine.writer import Connection


class LockFor(IntEnum):
    """The purpose of a lock. The numbers seed the lock's key and never change: workers of all versions share them."""

    THREAD_UPKEEP = 1
    ANSWER = 2
    SEGMENTS = 3
    JOB = 4
    EXTRACTION = 5
    ASKING_USER = 6
    ASKED_THREAD = 7
    EMBEDDING = 8
    THREAD_TURN = 9


@contextlib.asynccontextmanager
async def work_lock(conn: Connection, work: LockFor, name: str) -> AsyncIterator[bool]:
    """Holds the lock on (work, name) while the block runs and yields True; yields False if another connection holds it.

    The lock belongs to the connection: it is released at once when a worker dies.
    """
    query = "SELECT pg_try_advisory_lock(hashtextextended(%s, %s))"
    held = True  # The server may have taken the lock even if the call is cancelled.
    try:
        held = await (await conn.execute(query, (name, work.value))).fetchone() == (True,)
        yield held
    finally:
        if held:
            with contextlib.suppress(psycopg.Error):  # the connection is lost, and the lock with it
                await conn.execute("SELECT pg_advisory_unlock(hashtextextended(%s, %s))", (name, work.value))
