"""Rebuilds projections beside the live rows: fills shadow tables, catches up, then swaps tables in a short
transaction."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.errors import LockNotAvailable, QueryCanceled

from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log
from turnlog.events.progress import OnProgress, no_progress
from turnlog.projectors.engine import positions
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.lag import WANTED
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.rebuild import shadow
from turnlog.projectors.rebuild.build import Build, assert_rebuildable, building

SWITCH_WITHIN_S, SWITCH_PAUSE_S = 40.0, 0.05
CLOSE_ENOUGH = 500


class SwitchRefused(TurnlogError):
    """Long-running queries kept the tables locked; the live tables are unchanged."""

    code = "switch-refused"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild. events: read from the log; seconds: from the start until the rows are live."""

    projection: str
    events: int
    seconds: float

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0


async def rebuild(
    log: Log, database_url: str, projection: Projection, on_progress: OnProgress = no_progress
) -> Rebuilt:
    """Rebuilds the projection while the live projection continues. Raises RebuildStopped, RebuildRunning,
    SwitchRefused, RowsNotInLog, and errors of the log and of its keys."""
    return (await rebuild_several(log, database_url, [projection], on_progress))[0]


async def rebuild_several(
    log: Log,
    database_url: str,
    projections: Sequence[Projection],
    on_progress: OnProgress = no_progress,
) -> list[Rebuilt]:
    """Rebuilds several projections in one pass over the log and one switch; events and seconds are those of the pass.

    Raises the same errors as `rebuild`.
    """
    started = time.perf_counter()
    async with building(database_url, projections, "rebuild", on_progress) as build:
        await assert_rebuildable(log, build.conn)
        for partition in range(log.partitions):
            await build.fill(log, partition, await log.partition_head(partition))
        await shadow.finish(build.conn, projections, build.name)
        await _catch_up(log, build)
        await _switch(log, database_url, projections, build)
        seconds = time.perf_counter() - started
        return [Rebuilt(projection.name, build.events, seconds) for projection in projections]


async def _catch_up(log: Log, build: Build) -> None:
    """Applies the events that arrived meanwhile until few are left, so that the live projection waits only briefly for
    the switch."""
    for partition in range(log.partitions):
        while (head := await log.partition_head(partition)) > build.position(partition) + CLOSE_ENOUGH:
            await build.fill(log, partition, head)


async def _switch(log: Log, database_url: str, projections: Sequence[Projection], build: Build) -> None:
    async with await connect(database_url) as conn:
        # Only existing position rows can be locked.
        await positions.create(conn, projections, positions.LIVE, range(log.partitions))
        until = time.monotonic() + SWITCH_WITHIN_S
        while time.monotonic() < until:
            try:
                async with conn.transaction():
                    await conn.execute("SET LOCAL lock_timeout = '2s'")
                    await _finish_under_lock(log, conn, projections, build)
                return
            except (LockNotAvailable, QueryCanceled):
                await asyncio.sleep(SWITCH_PAUSE_S)
    raise SwitchRefused(
        f"{', '.join(p.name for p in projections)}: rebuilt, but the tables stayed in use for {SWITCH_WITHIN_S:.0f} s; "
        "end long queries on them and rebuild again"
    )


async def _finish_under_lock(log: Log, conn: Connection, projections: Sequence[Projection], build: Build) -> None:
    """Applies the remaining events under locks and swaps the tables. It locks the tables against VACUUM first, then the
    position rows in the engine's order, so that the live projection waits, and last the tables against readers. After
    that it waits for nothing."""
    await shadow.hold_still(conn, projections, build.name)
    names = [projection.name for projection in projections]
    rows = await conn.execute(
        "SELECT partition, position FROM projection_positions WHERE projection = ANY(%s) AND build = 'live' "
        "ORDER BY partition, projection FOR UPDATE",
        (names,),
    )
    for partition, position in await rows.fetchall():
        await build.fill(log, partition, position)
    await shadow.lock_out(conn, projections)
    await shadow.swap(conn, projections, build.name)
    await conn.cursor().executemany(
        "UPDATE projection_positions l SET position = %s, code_version = %s, updated_at = now(), stored_at = (SELECT "
        "b.stored_at FROM projection_positions b WHERE b.build = %s AND (b.projection, b.partition, b.position) = "
        "(l.projection, l.partition, %s)) WHERE projection = %s AND build = 'live' AND partition = %s",
        [
            (build.position(at), p.version, build.name, build.position(at), p.name, at)
            for p in projections
            for at in range(log.partitions)
        ],
    )
    await conn.execute("DELETE FROM projection_positions WHERE projection = ANY(%s) AND build = %s", (names, WANTED))
    await conn.execute(
        "DELETE FROM dead_letters WHERE projection = ANY(%s) AND build = 'live' AND status = 'parked'", (names,)
    )
    await conn.execute(
        "UPDATE dead_letters SET build = 'live' WHERE projection = ANY(%s) AND build = %s", (names, build.name)
    )
