"""Measures the cost of an event for all projections, in threads of 1,000, 10,000 and 100,000 events of each shape."""

import contextlib
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of the tests' own modules, as in pytest

from helpers.projection_spec import stored
from helpers.thread_shapes import SHAPES, Shape

from tests.benchmarks.measuring import Row, interleaved, ms
from tests.benchmarks.stand import Stand
from turnlog.projectors.engine import positions
from turnlog.projectors.engine.apply import apply_batch
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.engine.positions import LIVE, Positions
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import PROJECTIONS

IMPORTED, ROUNDS, AT_ONCE = 1_000, 15, 100


async def measure(stand: Stand) -> list[Row]:
    lengths = [1_000, stand.sized(10_000, 3_000), stand.sized(100_000, 10_000)]
    return [_row(shape, lengths, await _costs(stand, shape, lengths)) for shape in SHAPES]


def _row(shape: Shape, lengths: list[int], costs: list[float]) -> Row:
    places = ", ".join(f"{length:,}" for length in lengths)
    method = f"Median of {ROUNDS} batches of {AT_ONCE} events each, after {places} events of the shape."
    through = " / ".join(ms(cost) for cost in costs[1:])
    growth = costs[-1] / costs[0]
    return Row(
        f"an event of {shape.__name__.replace('_', ' ')}", through, ms(costs[0]), growth, None, ("<=", 1.3), method
    )


class _Log:
    """Generates events of one shape, and applies them with all projections to a separate database."""

    def __init__(self, conn: Connection, shape: Shape, at: Positions) -> None:
        self._conn, self._shape, self._at, self._done = conn, shape, at, 0

    async def apply(self, events: int) -> float:
        """Applies events and returns the milliseconds per event."""
        batch = [incoming(stored(self._shape(seq), seq)) for seq in range(self._done + 1, self._done + events + 1)]
        self._done += events
        begun = time.perf_counter()
        self._at = await apply_batch(self._conn, PROJECTIONS, batch, self._at, through=self._done, as_read=True)
        return 1000 * (time.perf_counter() - begun) / events


async def _costs(stand: Stand, shape: Shape, lengths: list[int]) -> list[float]:
    """Returns the milliseconds per event in a thread of each length. The threads are measured alternately."""
    async with contextlib.AsyncExitStack() as stack:
        logs = []
        for length in lengths:
            url = await stack.enter_async_context(stand.fresh_database())
            conn = await stack.enter_async_context(await connect(url))
            await conn.execute("SET synchronous_commit = off")
            logs.append(_Log(conn, shape, await positions.load(conn, PROJECTIONS, LIVE, 0)))
            for _ in range(length // IMPORTED):
                await logs[-1].apply(IMPORTED)
                await conn.execute("VACUUM ANALYZE")  # autovacuum cannot keep up with an import that takes only seconds
        return [median(each) for each in await interleaved(ROUNDS, *(partial(log.apply, AT_ONCE) for log in logs))]
