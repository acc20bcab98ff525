"""What an event costs all projections in threads of 1,000, 10,000 and 100,000 events of each shape."""

import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' own modules, as pytest has them

from helpers.projection_spec import stored
from helpers.thread_shapes import SHAPES, Shape

from tests.benchmarks.measuring import Row, ms
from tests.benchmarks.stand import Stand
from turnlog.projectors.engine import positions
from turnlog.projectors.engine.apply import apply_batch
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.engine.positions import LIVE
from turnlog.projectors.models.registry import PROJECTIONS

IMPORTED, BATCHES, AT_ONCE = 1_000, 10, 100


async def measure(stand: Stand) -> list[Row]:
    lengths = [1_000, stand.sized(10_000, 3_000), stand.sized(100_000, 10_000)]
    return [_row(shape, lengths, await _costs(stand, shape, lengths)) for shape in SHAPES]


def _row(shape: Shape, lengths: list[int], costs: list[float]) -> Row:
    places = ", ".join(f"{length:,}" for length in lengths)
    method = f"Median of {BATCHES} batches of {AT_ONCE} events each, after {places} events of the shape."
    through = " / ".join(ms(cost) for cost in costs[1:])
    growth = costs[-1] / costs[0]
    return Row(
        f"an event of {shape.__name__.replace('_', ' ')}", through, ms(costs[0]), growth, None, ("<=", 1.3), method
    )


async def _costs(stand: Stand, shape: Shape, lengths: list[int]) -> list[float]:
    """Milliseconds per event after each number of events."""
    async with stand.fresh_database() as url, await connect(url) as conn:
        await conn.execute("SET synchronous_commit = off")
        at, done, costs = await positions.load(conn, PROJECTIONS, LIVE, 0), 0, []

        async def apply(events: int) -> float:
            nonlocal at, done
            batch = [incoming(stored(shape(seq), seq)) for seq in range(done + 1, done + events + 1)]
            done += events
            begun = time.perf_counter()
            at = await apply_batch(conn, PROJECTIONS, batch, at, through=done, as_read=True)
            return 1000 * (time.perf_counter() - begun) / events

        for length in lengths:
            while done < length:
                await apply(min(IMPORTED, length - done))
            await conn.execute("VACUUM ANALYZE")
            costs.append(median([await apply(AT_ONCE) for _ in range(BATCHES)]))
        return costs
