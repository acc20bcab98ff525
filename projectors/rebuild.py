"""Rebuild side by side: shadow tables → catch up → one short transaction that swaps tables and positions (L6)."""

import time
from dataclasses import dataclass

from psycopg.errors import LockNotAvailable

from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log
from turnlog.projectors import shadow
from turnlog.projectors.build import Build, OnProgress, building, ignore
from turnlog.projectors.database import connect
from turnlog.projectors.projection import Projection
from turnlog.projectors.writer import Connection

SWITCH_TRIES = 20
CLOSE_ENOUGH = 500


class SwitchRefused(TurnlogError):
    """Long-running queries kept the tables locked; the live tables are unchanged."""

    code = "switch-refused"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did. events: read from the log; seconds: from start to switch."""

    projection: str
    events: int
    seconds: float

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0


async def rebuild(log: Log, database_url: str, projection: Projection, progress: OnProgress = ignore) -> Rebuilt:
    """Makes the projection anew while the live one goes on. Raises RebuildStopped, RebuildRunning, SwitchRefused."""
    started = time.perf_counter()
    async with building(log, database_url, projection, "rebuild", progress) as build:
        for partition in range(log.partitions):
            await build.fill(partition, await log.partition_head(partition))
        await shadow.finish(build.conn, projection, build.name)
        await _catch_up(log, build)
        await _switch(log, database_url, projection, build)
        return Rebuilt(projection.name, build.events, time.perf_counter() - started)


async def _catch_up(log: Log, build: Build) -> None:
    """Until what came meanwhile is little, so that the switch holds the live projection only for a moment."""
    for partition in range(log.partitions):
        while (head := await log.partition_head(partition)) > build.position(partition) + CLOSE_ENOUGH:
            await build.fill(partition, head)


async def _switch(log: Log, database_url: str, projection: Projection, build: Build) -> None:
    async with await connect(database_url) as conn:
        await _forget_version(conn, log, projection)
        for _ in range(SWITCH_TRIES):
            try:
                async with conn.transaction():
                    await conn.execute("SET LOCAL lock_timeout = '2s'")
                    await _finish_under_lock(log, conn, projection, build)
                return
            except LockNotAvailable:
                continue
    raise SwitchRefused(
        f"{projection.name} was rebuilt, but its tables stayed in use for {SWITCH_TRIES * 2} s; end long queries on "
        "them and rebuild again"
    )


async def _forget_version(conn: Connection, log: Log, projection: Projection) -> None:
    """The rows about to come are of this code's version; the position row must exist to be locked."""
    for partition in range(log.partitions):
        await conn.execute(
            "INSERT INTO projection_positions (projection, build, partition, position, code_version) "
            "VALUES (%s, 'live', %s, 0, %s) ON CONFLICT DO NOTHING",
            (projection.name, partition, projection.version),
        )


async def _finish_under_lock(log: Log, conn: Connection, projection: Projection, build: Build) -> None:
    rows = await conn.execute(
        "SELECT partition, position FROM projection_positions WHERE projection = %s AND build = 'live' "
        "ORDER BY partition FOR UPDATE",
        (projection.name,),
    )
    for partition, position in await rows.fetchall():
        await build.fill(partition, position)
    await shadow.swap(conn, projection, build.name)
    for partition in range(log.partitions):
        await conn.execute(
            "UPDATE projection_positions SET position = %s, code_version = %s, updated_at = now() "
            "WHERE projection = %s AND build = 'live' AND partition = %s",
            (build.position(partition), projection.version, projection.name, partition),
        )
    await conn.execute(
        "DELETE FROM dead_letters WHERE projection = %s AND build = 'live' AND status = 'parked'",
        (projection.name,),
    )
    await conn.execute(
        "UPDATE dead_letters SET build = 'live' WHERE projection = %s AND build = %s",
        (projection.name, build.name),
    )
