"""Measures how far projections are behind the log, and waits for them (read your writes)."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log
from turnlog.projectors.engine.database import is_locked
from turnlog.projectors.engine.same_log import assert_same_log
from turnlog.projectors.engine.writer import Connection

# A row of projection_positions with this build marks a projection whose live rows are of an earlier version. Its
# code_version is that of the newest code.
WANTED = "wanted"
# Projections whose old rows are read during a rebuild for a newer version: search and summaries work without the newest
# events. Old rows of other projections would show content that was changed or deleted since.
READ_WHILE_REBUILT = ("vectors", "topics", "summaries")
STALLED_AFTER_S = 15.0
# A partition with at least this many events in a batch, or still to apply, counts as catching up.
LARGE_BATCH = 200
FIRST_POLL_S, MAX_POLL_S = 0.002, 0.05


class NotProjectedInTime(TurnlogError):
    """The projection did not reach the sequence in the given time."""

    code = "not-projected-in-time"


@dataclass(frozen=True, slots=True)
class Lag:
    """One projection's distance from the end of its partition.

    stalled: an event has waited too long without the position moving; parked events do not count.
    seconds_since_moved: None if no worker has ever taken the partition. rebuilt: the share of the log (0 to 1) that a
    rebuild for a newer version of the projection has read; None if the rows are of the current version.
    """

    projection: str
    partition: int
    position: int
    head: int
    parked: int
    seconds_since_moved: float | None
    stalled: bool
    rebuilt: float | None = None

    @property
    def behind(self) -> int:
        """Returns the number of sequences between position and head, an upper bound of the events left to apply.

        The head is before the position if the last events of the partition were deleted, for instance by an erasure.
        """
        return max(0, self.head - self.position)

    @property
    def catching_up(self) -> bool:
        """Returns whether so many events are left that background work in the projector's process waits."""
        return self.behind >= LARGE_BATCH and not self.stalled


async def lag(log: Log, conn: Connection, stalled_after_s: float = STALLED_AFTER_S) -> list[Lag]:
    """Returns the lag of every live projection, by name and partition. Raises LogUnavailable, and OtherLog if the rows
    were made from another log, because then there is no distance."""
    log.appender.assert_same_log()  # a process that refuses appends is not ready
    await assert_same_log(log, conn)
    heads = await log.heads()
    rebuilt, is_rebuilding = await _rebuilds(conn, heads)
    # Lists all partitions of every known projection, because a partition without a worker must not look healthy.
    rows = await conn.execute(
        "SELECT n.projection, n.partition, coalesce(p.position, 0), coalesce(d.parked, 0), "
        "extract(epoch FROM now() - p.updated_at)::float "
        "FROM (SELECT DISTINCT l.projection, part AS partition FROM projection_positions l, unnest(%s::int[]) part "
        "WHERE l.build = 'live') n LEFT JOIN projection_positions p ON p.build = 'live' "
        "AND p.projection = n.projection AND p.partition = n.partition "
        "LEFT JOIN (SELECT projection, partition, count(*) AS parked FROM dead_letters "
        "WHERE build = 'live' AND status = 'parked' GROUP BY projection, partition) d "
        "ON d.projection = n.projection AND d.partition = n.partition ORDER BY n.projection, n.partition",
        (list(heads),),
    )
    return [
        Lag(
            name,
            part,
            at,
            heads.get(part, 0),
            parked,
            idle,
            at < heads.get(part, 0)
            and (idle is None or idle > stalled_after_s)
            and not (name in rebuilt and is_rebuilding)
            and await _waits(log, part, at, stalled_after_s),
            rebuilt.get(name),
        )
        for name, part, at, parked, idle in await rows.fetchall()
    ]


async def _rebuilds(conn: Connection, heads: Mapping[int, int]) -> tuple[dict[str, float], bool]:
    """Returns, for each projection with rows of an earlier version, the share of the log that its rebuild has read, and
    whether any process is rebuilding. The positions of a killed build stay until the next build begins."""
    rows = await conn.execute(
        "SELECT w.projection, (SELECT jsonb_object_agg(b.partition, b.position) FROM projection_positions b "
        "WHERE b.projection = w.projection AND starts_with(b.build, 'rebuild_')) FROM projection_positions w "
        "WHERE w.build = %s",
        (WANTED,),
    )
    shares, all_run = dict[str, float](), False
    for name, positions in await rows.fetchall():
        runs = await is_locked(conn, name, "build", -1)
        read = sum(min((positions or {}).get(str(at), 0), head) for at, head in heads.items()) if runs else 0
        shares[name] = read / max(1, sum(heads.values()))
        all_run = all_run or runs  # a process that rebuilds one of them rebuilds all in turn
    return shares, all_run


async def _waits(log: Log, partition: int, position: int, longer_than_s: float) -> bool:
    """Returns whether an event after the position has waited too long; an old position alone is not a stall."""
    since = await log.waiting_since(partition, position)
    return since is not None and (datetime.now(UTC) - since).total_seconds() > longer_than_s


async def wait_for(
    conn: Connection,
    projections: Sequence[str],
    partition: int,
    seq: int,
    timeout_s: float = 30.0,
    without: Sequence[str] = (),
) -> None:
    """Waits until every named projection has applied `seq` of its partition. Raises NotProjectedInTime.

    without: projections that are not waited for while they are rebuilt for a newer version.
    """
    deadline, pause = time.monotonic() + timeout_s, FIRST_POLL_S
    while (behind := await first_behind(conn, projections, partition, seq, without)) is not None:
        if time.monotonic() > deadline:
            raise NotProjectedInTime(
                f"{behind} did not reach sequence {seq} within {timeout_s:g} s; `turnlog lag` shows its position. "
                + await _why_not(conn, behind)
            )
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, MAX_POLL_S)


async def _why_not(conn: Connection, projection: str) -> str:
    if projection in await being_rebuilt(conn):
        return "It is being rebuilt for the current version of turnlog; try again when that is done"
    return "Is a projector running (`turnlog up` or `turnlog worker projectors`)?"


async def degraded_by_rebuild(conn: Connection, projections: Sequence[str]) -> str | None:
    """Returns a note about missing turns if one of the projections is read during its rebuild, else None."""
    names = [name for name in await being_rebuilt(conn) if name in projections and name in READ_WHILE_REBUILT]
    if not names:
        return None
    return f"{', '.join(names)}: being rebuilt for the current version of turnlog, without the newest turns so far"


async def being_rebuilt(conn: Connection) -> list[str]:
    """Returns the projections whose rows are of an earlier version, by name."""
    rows = await conn.execute(
        "SELECT projection FROM projection_positions WHERE build = %s ORDER BY projection", (WANTED,)
    )
    return [name for (name,) in await rows.fetchall()]


async def first_behind(
    conn: Connection, projections: Sequence[str], partition: int, seq: int, without: Sequence[str] = ()
) -> str | None:
    """Returns the first of the named projections that has not applied `seq` of the partition; None if all have.

    without: see wait_for.
    """
    rows = await conn.execute(
        "SELECT projection FROM projection_positions WHERE projection = ANY(%s) AND (build = 'live' "
        "AND partition = %s AND position >= %s OR build = %s AND projection = ANY(%s))",
        (list(projections), partition, seq, WANTED, list(without)),
    )
    reached = {name for (name,) in await rows.fetchall()}
    return next((name for name in projections if name not in reached), None)
