"""Rebuilds the rows of an earlier version of turnlog while the old rows are still read."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import psycopg

from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log
from turnlog.events.progress import OnProgress
from turnlog.events.tasks import pause
from turnlog.projectors.engine.database import connect, take_locks
from turnlog.projectors.engine.lag import READ_WHILE_REBUILT, WANTED
from turnlog.projectors.engine.positions import LIVE
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.rebuild.build import RebuildRunning, RebuildStopped
from turnlog.projectors.rebuild.rebuild import rebuild_several

logger = logging.getLogger("turnlog.projectors")
LOOK_AGAIN_S = 0.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 600.0
STEPS = 10  # lines of progress in the log


async def note_earlier(conn: Connection, projections: Sequence[Projection]) -> list[Projection]:
    """Returns the projections whose rows are of an earlier version, and records them for every process (WANTED).

    A projection that this version has added has no rows yet. It is recorded as version 0 and so is rebuilt too;
    otherwise the live projections would read the entire log again with it. Rows of a later version are left alone,
    because another process may be newer.
    """
    versions = ([projection.name for projection in projections], [projection.version for projection in projections])
    await conn.execute(
        "INSERT INTO projection_positions (projection, build, partition, position, code_version) "
        "SELECT n.projection, %s, p.partition, 0, 0 FROM unnest(%s::text[]) n (projection), (SELECT DISTINCT partition "
        "FROM projection_positions WHERE build = %s AND position > 0) p WHERE NOT EXISTS (SELECT FROM "
        "projection_positions l WHERE l.projection = n.projection AND l.build = %s) ON CONFLICT DO NOTHING",
        (LIVE, versions[0], LIVE, LIVE),
    )
    rows = await conn.execute(
        "WITH code AS (SELECT * FROM unnest(%s::text[], %s::int[]) c (projection, version)), earlier AS (SELECT "
        "c.projection, c.version FROM code c WHERE EXISTS (SELECT FROM projection_positions l WHERE l.build = %s AND "
        "l.projection = c.projection AND l.code_version < c.version)) INSERT INTO projection_positions (projection, "
        "build, partition, position, code_version) SELECT projection, %s, 0, 0, version FROM earlier "
        "ON CONFLICT (projection, build, partition) DO UPDATE SET code_version = excluded.code_version "
        "RETURNING projection",
        (*versions, LIVE, WANTED),
    )
    earlier = {name for (name,) in await rows.fetchall()}
    return [projection for projection in projections if projection.name in earlier]


async def rebuild_earlier(
    log: Log,
    database_url: str,
    projections: Sequence[Projection],
    stop: asyncio.Event,
    beat: Callable[[], None],
) -> None:
    """Rebuilds the projections whose rows are of an earlier version; returns when there are none left, or when `stop`
    is set.

    beat: called at each try and after each batch of events.
    It rebuilds first, in one pass, the projections whose readers must wait, then those whose old rows are read
    meanwhile. Only one process rebuilds at a time, and the others wait for it. A failed rebuild is tried again at
    growing intervals.
    """
    wait_s, together = FIRST_PAUSE_S, True
    while not stop.is_set():
        beat()
        try:
            async with await connect(database_url) as conn:
                # Held until all are rebuilt, so that a waiting process finds none left to rebuild.
                if not await take_locks(conn, ["upgrade"], "build", -1):
                    raise RebuildRunning("another process rebuilds the rows of an earlier version")
                earlier = await note_earlier(conn, projections)
                if not earlier:
                    return
                for some in _passes(earlier) if together else [[projection] for projection in earlier]:
                    await _rebuild(log, database_url, some, beat)
        except RebuildRunning:
            await pause(stop, LOOK_AGAIN_S)
        except (TurnlogError, psycopg.Error, OSError) as error:
            logger.error("rows of an earlier version stay for now: %s", error)
            # A projection that cannot apply an event must not stop the others.
            if isinstance(error, RebuildStopped) and together:
                together = False
                continue
            await pause(stop, wait_s)
            wait_s = min(wait_s * 2, LONGEST_PAUSE_S)


def _passes(earlier: Sequence[Projection]) -> list[list[Projection]]:
    passes = [
        [projection for projection in earlier if (projection.name in READ_WHILE_REBUILT) == is_read]
        for is_read in (False, True)
    ]
    return [some for some in passes if some]


async def _rebuild(log: Log, database_url: str, projections: Sequence[Projection], beat: Callable[[], None]) -> None:
    names = ", ".join(projection.name for projection in projections)
    done = await rebuild_several(log, database_url, projections, _steps(f"rebuilding {names} for this version", beat))
    logger.warning("rebuilt %s: %d events in %.1f s", names, done[0].events, done[0].seconds)


def _steps(what: str, beat: Callable[[], None]) -> OnProgress:
    said = -1

    def say(done: float, total: float | None) -> None:
        nonlocal said
        beat()
        step = int(STEPS * done / total) if total else 0
        if step > said:
            said = step
            logger.warning("%s: %d %%", what, step * 100 // STEPS)

    return say
