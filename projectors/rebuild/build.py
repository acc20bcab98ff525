"""Fills shadow tables from the log. A new poison event stops the build with an error that names it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from turnlog.events.errors import InvalidEvent, InvalidToken, TurnlogError
from turnlog.events.log import Log
from turnlog.events.progress import OnProgress
from turnlog.projectors.engine import parking, positions
from turnlog.projectors.engine.apply import apply_batch
from turnlog.projectors.engine.database import connect, take_locks
from turnlog.projectors.engine.duplicates import without_duplicates
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.engine.positions import Positions
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.same_log import assert_same_log, projected
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.rebuild import shadow

BATCH = 5_000


class RebuildStopped(TurnlogError):
    """A rebuild met an event that it cannot apply and that is not parked; the live tables are unchanged."""

    code = "rebuild-stopped"


class RebuildRunning(TurnlogError):
    """Another process is rebuilding or verifying this projection right now."""

    code = "rebuild-running"


class RowsNotInLog(TurnlogError):
    """A rebuild would lose rows that were kept when another log was adopted, because that log lacks their events."""

    code = "rows-not-in-log"


async def assert_rebuildable(log: Log, conn: Connection) -> None:
    """Checks that a rebuild would lose no rows. Raises RowsNotInLog, OtherLog."""
    await assert_same_log(log, conn)
    if (kept := (await projected(conn)).kept_through) is not None:
        raise RowsNotInLog(
            f"rows of events up to sequence {kept:,} were kept when this log was adopted. It does not have all of "
            "these events, so a rebuild would lose the rows. `turnlog log rebuild` deletes all rows and rebuilds them "
            "from this log, without the events that it lacks"
        )


class Build:
    """A shadow build of some projections in one pass over the log; `building` creates it.

    name: the build's name in the tables of positions and parked events while it lasts. on_progress: called with the
    number of events done and of all events.
    """

    def __init__(self, conn: Connection, projections: Sequence[Projection], name: str, on_progress: OnProgress) -> None:
        self.conn, self.name, self._on_progress = conn, name, on_progress
        self.projections = sorted(projections, key=lambda p: p.name)
        self._at: dict[int, Positions] = {}
        self.events = 0

    async def fill(self, log: Log, partition: int, through: int) -> None:
        """Applies the partition's events up to `through`. Raises RebuildStopped, GapInLog, KeyUnavailable."""
        if partition not in self._at:
            self._at[partition] = await positions.load(self.conn, self.projections, self.name, partition)
        dropped = await parking.dropped_seqs(self.conn, self._at[partition].at, partition)
        after = self.position(partition)
        async with log.reader(partition, after + 1) as reader:
            pending = reader.pending_at_start
            while pending and after < through:
                if stored := await reader.batch(BATCH, wait_s=5.0):
                    pending, after = stored[-1].pending, min(stored[-1].seq, through)
                    batch = [incoming(message, log.signer) for message in stored if message.seq <= through]
                    first = await without_duplicates(self.conn, batch, partition)
                    at = await apply_batch(self.conn, self.projections, first, self._at[partition], after, dropped)
                    await self._refuse_new_poison(at, batch[0].seq if batch else after)
                    self._at[partition] = at
                    self.events += len(batch)
                    self._on_progress(self.events, self.events + pending)

    def position(self, partition: int) -> int:
        return self._at[partition].lowest

    async def _refuse_new_poison(self, at: Positions, since: int) -> None:
        """Raises RebuildStopped at a new poison event.

        Events that the live projection parked may stay parked. So may an event that does not fit its contract: the live
        projection would park it now, although an earlier version may have applied it."""
        rows = await self.conn.execute(
            "SELECT b.seq, b.projection, b.error FROM dead_letters b WHERE b.projection = ANY(%(names)s) "
            "AND b.build = %(build)s AND b.seq >= %(since)s AND b.reason = 'poison' "
            "AND split_part(b.error, ':', 1) <> ALL(%(refused)s) AND NOT EXISTS (SELECT FROM dead_letters l "
            "WHERE l.projection = b.projection AND l.build = 'live' AND l.seq = b.seq) ORDER BY b.seq LIMIT 1",
            {
                "names": sorted(at.at),
                "build": at.build,
                "since": since,
                "refused": [InvalidEvent.code, InvalidToken.code],
            },
        )
        if row := await rows.fetchone():
            seq, name, error = row
            raise RebuildStopped(
                f"{name} cannot apply the event at sequence {seq}: {error}. The live tables are unchanged. "
                f"Fix the projector, or let the live projection park it and drop it with "
                f"`turnlog dead-letters drop {seq}`"
            )


@asynccontextmanager
async def building(
    database_url: str, projections: Sequence[Projection], kind: str, on_progress: OnProgress
) -> AsyncIterator[Build]:
    """Creates shadow tables, yields a build, and removes what is left of the tables at the end of the block. Raises
    RebuildRunning."""
    name = f"{kind}_{projections[0].name if len(projections) == 1 else 'several'}"
    async with await connect(database_url, shadow.schema_of(name)) as conn:
        await conn.execute("SET synchronous_commit = off")  # after a crash of Postgres the build starts again anyway
        if not await take_locks(conn, [*(p.name for p in projections), name], "build", -1):
            names = ", ".join(p.name for p in projections)
            raise RebuildRunning(f"{names}: another process is rebuilding or verifying it; wait for it")
        await shadow.create(conn, projections, name)
        try:
            yield Build(conn, projections, name, on_progress)
        finally:
            if not conn.broken:
                await shadow.discard(conn, projections, name)
                # Postgres releases the locks of a closed connection only a moment later.
                await conn.execute("SELECT pg_advisory_unlock_all()")
