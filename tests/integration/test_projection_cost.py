"""An event's cost for a projector does not grow with its thread, so that long conversations do not delay others.

Costs are counted, not timed: rows and index entries read, rows written, pages, and bytes of the write-ahead log.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from helpers import nightly
from helpers.projection_spec import stored
from helpers.thread_shapes import SHAPES, Shape, memories, short_turns, tool_calls, topics_and_vectors

from turnlog.events.stored import Stored
from turnlog.projectors.engine import positions
from turnlog.projectors.engine.apply import apply_batch
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.engine.positions import LIVE, Positions
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import PROJECTIONS

pytestmark = pytest.mark.slow

EARLY, LATE = (200, 2_000) if nightly.FULL else (100, 1_000)
# events per batch before measuring, events measured one by one, events measured in one batch
IMPORTED, ALONE, TOGETHER = 500, 20, 100
ALWAYS = (short_turns, tool_calls, topics_and_vectors, memories)  # other shapes are measured with --nightly
_COST = """
SELECT (SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd + n_tup_del)
    FROM pg_stat_user_tables)::float,
  (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)::float,
  (SELECT sum(hits + reads) FROM pg_stat_get_backend_io(pg_backend_pid()) WHERE object = 'relation')::float,
  (SELECT wal_bytes FROM pg_stat_get_backend_wal(pg_backend_pid()))::float"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an event. rows: rows read and written. entries: index entries read. pages: pages in memory or read.
    bytes: of the WAL."""

    rows: float
    entries: float
    pages: float
    bytes: float

    def __sub__(self, earlier: "Cost") -> "Cost":
        return Cost(*(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)))

    def per_event(self, events: int) -> "Cost":
        return Cost(*(getattr(self, field.name) / events for field in fields(self)))

    def exceeds(self, early: "Cost") -> list[str]:
        """Returns the costs that are more than 1.3 times those of earlier events. The tolerance is for random
        differences: pages of a tree's next level and index entries of earlier row versions.
        """
        slack = Cost(rows=8, entries=30, pages=30, bytes=1_000)
        return [
            f"{field.name}: {was:.0f} → {now:.0f}"
            for field in fields(self)
            if (now := getattr(self, field.name))
            > 1.3 * (was := getattr(early, field.name)) + getattr(slack, field.name)
        ]


async def spent(conn: Connection) -> Cost:
    await conn.execute("SELECT pg_stat_force_next_flush()")
    row = await (await conn.execute(_COST)).fetchone()
    assert row is not None
    return Cost(*row)


class Log:
    """Applies a log of one shape to every projection, as the engine does."""

    def __init__(self, conn: Connection, shape: Shape, at: Positions) -> None:
        self._conn, self._shape, self._at, self._done = conn, shape, at, 0

    async def apply(self, events: int) -> None:
        batch = [incoming(self._stored(seq)) for seq in range(self._done + 1, self._done + events + 1)]
        self._done += events
        self._at = await apply_batch(self._conn, PROJECTIONS, batch, self._at, through=self._done, as_read=True)

    async def reach(self, seq: int) -> None:
        while self._done < seq:
            await self.apply(min(IMPORTED, seq - self._done))

    def _stored(self, seq: int) -> Stored:
        return stored(self._shape(seq), seq)

    async def measured(self) -> tuple[Cost, Cost]:
        """Returns the costs per event of the next events, one by one and in one batch."""
        await self._conn.execute("VACUUM ANALYZE")
        begun = await spent(self._conn)
        for _ in range(ALONE):
            await self.apply(1)
        alone = await spent(self._conn)
        await self.apply(TOGETHER)
        return (alone - begun).per_event(ALONE), (await spent(self._conn) - alone).per_event(TOGETHER)


class PoisonedLog(Log):
    """A log whose first event cannot be applied, so that all later events of the thread are parked."""

    def _stored(self, seq: int) -> Stored:
        record = super()._stored(seq)
        return replace(record, body=b"{}") if seq == 1 else record


def shapes() -> list[Any]:
    return [
        pytest.param(shape, marks=[] if shape in ALWAYS else pytest.mark.nightly, id=shape.__name__) for shape in SHAPES
    ]


@pytest.mark.parametrize("shape", shapes())
async def test_an_events_cost_does_not_depend_on_the_length_of_its_thread(db: Connection, shape: Shape) -> None:
    await _compare(Log(db, shape, await positions.load(db, PROJECTIONS, LIVE, 0)))


@pytest.mark.nightly
async def test_an_events_cost_does_not_depend_on_the_number_of_parked_events(db: Connection) -> None:
    await _compare(PoisonedLog(db, short_turns, await positions.load(db, PROJECTIONS, LIVE, 0)))


async def _compare(log: Log) -> None:
    await log.reach(EARLY)
    early = await log.measured()
    await log.reach(LATE)
    late = await log.measured()
    assert [now.exceeds(was) for was, now in zip(early, late, strict=True)] == [[], []]
