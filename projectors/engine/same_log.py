"""Checks that the rows were made from the connected log, by its id, its end and the last applied event.

A stream that was deleted and recreated has another id. A restored backup has the same id; if it is older, it ends
before the positions, and if events were appended to it since, another event is at the position.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import psycopg
from psycopg_pool import PoolTimeout

from turnlog.events.errors import WAYS_OUT, LogUnavailable, NotFound, OtherLog
from turnlog.events.heartbeats import Heartbeat, Heartbeats
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection

LOOK_S, AGAIN_S = 1.0, 0.25
POOL_WAIT_S = 2.0
# Times that differ by less count as equal, because the log stores nanoseconds and Postgres microseconds. Restoring a
# backup takes longer.
SAME_TIME = timedelta(milliseconds=1)
_READ = """
SELECT l.log_id, l.kept_through, coalesce(p.position, 0), p.stored_at FROM (VALUES (1)) AS one
LEFT JOIN projected_log l ON true LEFT JOIN LATERAL (
  SELECT position, stored_at FROM projection_positions WHERE build = 'live'
  ORDER BY position DESC, stored_at NULLS LAST LIMIT 1) p ON true"""
_NOTE = """
INSERT INTO projected_log AS l (log_id, kept_through) VALUES (%s, %s)
ON CONFLICT (single) DO UPDATE SET log_id = excluded.log_id, kept_through = excluded.kept_through"""


class Connections(Protocol):
    """A pool of autocommit connections."""

    def connection(self, timeout: float | None = None) -> AbstractAsyncContextManager[Connection]: ...


@dataclass(frozen=True, slots=True)
class Projected:
    """The log that the rows were made from. log_id: None if none is recorded. position: the furthest of all
    projections.

    stored_at: when the log stored the event at that position; None if unknown. kept_through: see the table
    `projected_log`.
    """

    log_id: str | None
    kept_through: int | None
    position: int
    stored_at: datetime | None


async def projected(conn: Connection) -> Projected:
    row = await (await conn.execute(_READ)).fetchone()
    assert row is not None
    return Projected(*row)


async def note_log(conn: Connection, log_id: str, kept_through: int | None = None) -> None:
    """Records that the rows belong to this log from now on."""
    await conn.execute(_NOTE, (log_id, kept_through))


async def assert_same_log(log: Log, conn: Connection) -> int:
    """Returns the log's last sequence after checking that the rows were made from it. Raises OtherLog, LogUnavailable.

    Rows without a recorded log, and a database without rows, are assigned to the connected log.
    """
    rows = await projected(conn)
    head = await compare(log, rows)
    if rows.log_id is None or not rows.position:
        log_id = (await log.state()).id
        if log_id != rows.log_id:
            await note_log(conn, log_id)
    return head


async def compare(log: Log, rows: Projected) -> int:
    """Returns the log's last sequence after the checks of `assert_same_log`, for the given state of the rows."""
    state = await log.state()
    if rows.log_id not in (None, state.id) and rows.position:
        raise OtherLog(
            f"the rows were made from the log {rows.log_id} up to sequence {rows.position:,}, and the connected one is "
            f"{state.id}, which ends at {state.head:,}: NATS_URL and DATABASE_URL do not belong together, or "
            f"the stream was deleted and made again. {WAYS_OUT}"
        )
    if rows.position > state.head:  # Asks again, because a newly elected leader may not have applied all events yet.
        await asyncio.sleep(AGAIN_S)
        state = await log.state()
    if rows.position > state.head:
        raise OtherLog(
            f"the rows were made from events up to sequence {rows.position:,}, and the log ends at {state.head:,}: an "
            f"older backup of the log was restored. {WAYS_OUT}"
        )
    if rows.position and rows.stored_at is not None and not await _was_stored(log, rows.position, rows.stored_at):
        raise OtherLog(
            f"the event at sequence {rows.position:,} is not the one from which the rows were made: an older "
            f"backup of the log was restored and appended to. {WAYS_OUT}"
        )
    return state.head


async def _was_stored(log: Log, seq: int, at: datetime) -> bool:
    """Returns whether the log stored the event at that time; also True if the event was deleted since, for instance by
    an erasure."""
    try:
        stored = await log.stored(seq, with_key=False)
    except NotFound:
        return True
    return abs(stored.stored_at - at) < SAME_TIME


@asynccontextmanager
async def guarded(log: Log, pool: Connections, beats: Heartbeats) -> AsyncIterator[None]:
    """Refuses appends, while the block runs, whenever the rows were made from another log.

    It checks at once and then every LOOK_S seconds; between checks, appends compare the sequences that NATS
    acknowledges. While Postgres cannot be reached, the last state of the rows is used."""
    rows: Projected | None = None

    async def look() -> None:
        nonlocal rows
        try:
            with suppress(psycopg.Error, PoolTimeout, OSError):
                async with pool.connection(POOL_WAIT_S) as conn:
                    head = await assert_same_log(log, conn)
                    rows = await projected(conn)
                    log.appender.allow(head)
                    return
            if rows is not None:
                log.appender.allow(await compare(log, rows))
        except OtherLog as error:
            log.appender.refuse(str(error))
        except LogUnavailable:
            pass  # Appends fail without a log anyway, and the next check is soon.

    async def keep_looking(beat: Heartbeat) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await look()
            beat.beat()

    await look()
    async with beats.running("process", "same-log", keep_looking, asyncio.Event()):
        yield
