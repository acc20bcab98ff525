"""Filling shadow tables from the log, strictly: a new poison event stops the build and is named."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log
from turnlog.events.read import OrderedReader
from turnlog.projectors import parking, positions, shadow
from turnlog.projectors.apply import apply_batch
from turnlog.projectors.database import connect, take_locks
from turnlog.projectors.duplicates import without_duplicates
from turnlog.projectors.incoming import incoming
from turnlog.projectors.positions import Positions
from turnlog.projectors.projection import Projection
from turnlog.projectors.writer import Connection

BATCH = 5_000


class RebuildStopped(TurnlogError):
    """A rebuild met an event it cannot apply and that is not parked yet; live tables are unchanged."""

    code = "rebuild-stopped"


class RebuildRunning(TurnlogError):
    """Another process is rebuilding or verifying this projection right now."""

    code = "rebuild-running"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is: events read, and events still to come as the server counts them."""

    events: int
    remaining: int


OnProgress = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """No progress wanted."""


class Build:
    """A shadow build of some projections in one pass over the log. Make it with `building`."""

    def __init__(
        self, log: Log, conn: Connection, projections: Sequence[Projection], name: str, progress: OnProgress
    ) -> None:
        self._log, self.conn, self.name, self._progress = log, conn, name, progress
        self._projections = sorted(projections, key=lambda p: p.name)
        self._at: dict[int, Positions] = {}
        self.events = 0

    async def fill(self, partition: int, through: int) -> None:
        """Applies the partition's events up to `through`. Raises RebuildStopped, GapInLog."""
        at = self._at.get(partition) or await positions.load(self.conn, self._projections, self.name, partition)
        dropped = await parking.dropped_seqs(self.conn, at.at, partition)
        async with self._log.reader(partition, at.lowest + 1) as reader:
            pending = reader.pending_at_start
            while pending and at.lowest < through:
                at, pending = await self._step(reader, at, through, dropped)
        self._at[partition] = at

    def position(self, partition: int) -> int:
        return self._at[partition].lowest

    async def _step(
        self, reader: OrderedReader, at: Positions, through: int, dropped: dict[str, set[int]]
    ) -> tuple[Positions, int]:
        stored = await reader.batch(BATCH, wait_s=5.0)
        if not stored:
            return at, 1
        within = [s for s in stored if s.seq <= through]
        batch = await without_duplicates(self.conn, [incoming(s) for s in within], at.partition)
        at = await apply_batch(self.conn, self._projections, batch, at, min(stored[-1].seq, through), dropped)
        await self._refuse_new_poison(at)
        self.events += len(within)
        self._progress(Progress(self.events, stored[-1].pending))
        return at, stored[-1].pending

    async def _refuse_new_poison(self, at: Positions) -> None:
        """What is parked live may stay parked; anything else stops the build."""
        rows = await self.conn.execute(
            "SELECT b.seq, b.projection, b.error FROM dead_letters b WHERE b.projection = ANY(%(names)s) "
            "AND b.build = %(build)s AND b.reason = 'poison' AND NOT EXISTS (SELECT FROM dead_letters l "
            "WHERE l.projection = b.projection AND l.build = 'live' AND l.seq = b.seq) ORDER BY b.seq LIMIT 1",
            {"names": sorted(at.at), "build": at.build},
        )
        if found := await rows.fetchone():
            seq, name, error = found
            raise RebuildStopped(
                f"{name} cannot apply the event at sequence {seq}: {error}. The live tables are unchanged. "
                f"Mend the projector, or let the live projection park it and drop it with "
                f"`turnlog dead-letters drop {seq}`"
            )


@asynccontextmanager
async def building(
    log: Log, database_url: str, projections: Sequence[Projection], kind: str, progress: OnProgress
) -> AsyncIterator[Build]:
    """Shadow tables for the time of the block; whatever is left of them at its end is removed."""
    name = f"{kind}_{projections[0].name if len(projections) == 1 else 'several'}"
    async with await connect(database_url, shadow.schema_of(name)) as conn:
        if not await take_locks(conn, [*(p.name for p in projections), name], "build", -1):
            names = ", ".join(p.name for p in projections)
            raise RebuildRunning(f"{names}: another process rebuilds or verifies it just now; wait for it")
        await shadow.create(conn, projections, name)
        try:
            yield Build(log, conn, projections, name, progress)
        finally:
            if not conn.broken:
                await shadow.discard(conn, projections, name)
