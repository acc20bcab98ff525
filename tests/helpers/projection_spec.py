"""Specifies a projection: given events, when events, then rows.

The events are encoded, decoded and applied by the engine's own functions on a real Postgres. Each event is stored twice
under the same id, and each batch is delivered twice. A specification runs with batches of one event, of two, of half
the log and of the entire log; with --nightly it runs with batches of every size. The rows must be the same every time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from helpers import nightly

from turnlog.events.codec import encode
from turnlog.events.contracts import Event
from turnlog.events.stored import Stored
from turnlog.events.subjects import STORED_PREFIX, thread_token
from turnlog.projectors.engine import positions
from turnlog.projectors.engine.apply import apply_batch
from turnlog.projectors.engine.duplicates import without_duplicates
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.engine.positions import LIVE
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection

STEP = 10
ENGINE_TABLES = ("projection_positions", "event_ids", "dead_letters")


def seq(number: int) -> int:
    """Returns the sequence of the n-th event of a specification, from 1; the second copy of the event comes five
    later."""
    return number * STEP


def batch_sizes(events: int) -> list[int]:
    return list(range(1, events + 1)) if nightly.FULL else sorted({1, 2, max(1, events // 2), events})


def stored(event: Event, at: int) -> Stored:
    subject = f"{STORED_PREFIX}.0.{event.tenant}.{thread_token(event.thread)}.{event.type}"
    return Stored(at, subject, encode(event), int(event.time.timestamp() * 1e9), pending=0)


@dataclass(frozen=True, slots=True)
class Spec:
    """One projection on a separate database. setup: SQL that runs before the events. sizes: the sizes of batches."""

    conn: Connection
    projection: Projection
    events: tuple[Event, ...] = ()
    setup: str = ""
    sizes: tuple[int, ...] = ()

    def given(self, *events: Event) -> Self:
        return replace(self, events=self.events + events)

    when = given

    async def then(self, query: str, expected: Sequence[Any]) -> None:
        """Asserts that the query returns the expected rows (tuples) for every size of the batches."""
        whole: list[Any] = []
        log = [stored(event, seq(number)) for number, event in enumerate(self.events, 1)]
        log += [replace(first, seq=first.seq + STEP // 2) for first in log]
        log.sort(key=lambda entry: entry.seq)
        for size in self.sizes or batch_sizes(len(log)):
            await self._replay(log, size)
            rows = await (await self.conn.execute(query.encode())).fetchall()
            assert rows == list(expected), f"in batches of {size}: {rows}"
            whole.append(await self._every_row())
            assert whole[-1] == whole[0], f"batches of {size} give other rows than batches of 1"

    async def _replay(self, log: Sequence[Stored], size: int) -> None:
        tables = ", ".join([*(table.name for table in self.projection.tables), *ENGINE_TABLES])
        await self.conn.execute(f"TRUNCATE {tables}".encode())
        if self.setup:
            await self.conn.execute(self.setup.encode())
        at = await positions.load(self.conn, [self.projection], LIVE, 0)
        for start in range(0, len(log), size):
            part = log[start : start + size]
            for _ in ("delivered", "delivered again"):
                batch = await without_duplicates(self.conn, [incoming(entry) for entry in part], 0)
                at = await apply_batch(self.conn, [self.projection], batch, at, through=part[-1].seq)
        parked = await (await self.conn.execute("SELECT seq, error FROM dead_letters")).fetchall()
        assert parked == []

    async def _every_row(self) -> list[list[str]]:
        tables = []
        for table in self.projection.tables:
            rows = await self.conn.execute(f"SELECT t::text FROM {table.name} t ORDER BY 1".encode())
            tables.append([text for (text,) in await rows.fetchall()])
        return tables
