"""Filling shadow tables from the log, strictly: a new poison event stops the build and is named."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log
from turnlog.events.read import OrderedReader
from turnlog.projectors import positions, shadow
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
    """A shadow build of one projection on a connection of its own. Make it with `building`."""

    def __init__(self, log: Log, conn: Connection, projection: Projection, name: str, progress: OnProgress) -> None:
        self._log, self.conn, self._projection, self.name, self._progress = (
            log,
            conn,
            projection,
            name,
            progress,
        )
        self._at: dict[int, Positions] = {}
        self.events = 0

    async def fill(self, partition: int, through: int) -> None:
        """Applies the partition's events up to `through`. Raises RebuildStopped, GapInLog."""
        at = self._at.get(partition) or await positions.load(self.conn, [self._projection], self.name, partition)
        passed_over = await self._passed_over(partition)
        async with self._log.reader(partition, at.lowest + 1) as reader:
            pending = reader.pending_at_start
            while pending and at.lowest < through:
                at, pending = await self._step(reader, at, through, passed_over)
        self._at[partition] = at

    def position(self, partition: int) -> int:
        return self._at[partition].lowest

    async def _step(
        self, reader: OrderedReader, at: Positions, through: int, passed_over: set[int]
    ) -> tuple[Positions, int]:
        stored = await reader.batch(BATCH, wait_s=5.0)
        within = [s for s in stored if s.seq <= through and s.seq not in passed_over]
        if stored:
            batch = await without_duplicates(self.conn, [incoming(s) for s in within], at.partition)
            end = min(stored[-1].seq, through)
            at = await apply_batch(self.conn, [self._projection], batch, at, end)
            await self._refuse_new_poison(at)
            self.events += len(within)
            self._progress(Progress(self.events, stored[-1].pending))
        return at, stored[-1].pending if stored else 1

    async def _passed_over(self, partition: int) -> set[int]:
        rows = await self.conn.execute(
            "SELECT seq FROM dead_letters WHERE projection = %s AND build = 'live' AND partition = %s "
            "AND status = 'dropped'",
            (self._projection.name, partition),
        )
        return {seq for (seq,) in await rows.fetchall()}

    async def _refuse_new_poison(self, at: Positions) -> None:
        """What is parked live may stay parked; anything else stops the build."""
        rows = await self.conn.execute(
            "SELECT b.seq, b.error FROM dead_letters b WHERE b.projection = %(name)s AND b.build = %(build)s "
            "AND b.reason = 'poison' AND NOT EXISTS (SELECT FROM dead_letters l WHERE l.projection = %(name)s "
            "AND l.build = 'live' AND l.seq = b.seq) ORDER BY b.seq LIMIT 1",
            {"name": self._projection.name, "build": at.build},
        )
        if found := await rows.fetchone():
            raise RebuildStopped(
                f"{self._projection.name} cannot apply the event at sequence {found[0]}: {found[1]}. The live tables "
                f"are unchanged. Mend the projector, or let the live projection park it and drop it with "
                f"`turnlog dead-letters drop {found[0]}`"
            )


@asynccontextmanager
async def building(
    log: Log, database_url: str, projection: Projection, kind: str, progress: OnProgress
) -> AsyncIterator[Build]:
    """Shadow tables for the time of the block; whatever is left of them at its end is removed."""
    name = f"{kind}_{projection.name}"
    async with await connect(database_url, shadow.schema_of(name)) as conn:
        if not await take_locks(conn, [projection.name], "build", -1):
            raise RebuildRunning(f"{projection.name} is being rebuilt or verified by another process; wait for it")
        await shadow.create(conn, projection, name)
        try:
            yield Build(log, conn, projection, name, progress)
        finally:
            if not conn.broken:
                await shadow.discard(conn, projection, name)
