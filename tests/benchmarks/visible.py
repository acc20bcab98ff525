"""Measures the time from an append until the event is in `messages`, compared with a plain publish and insert."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tests.benchmarks.measuring import Row, ms, quantile
from tests.benchmarks.stand import Stand, following
from turnlog.agent.runtime import Pool
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import Event
from turnlog.events.log import Log
from turnlog.events.publish import outgoing
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection

RATE = 100
WATCH_S = 0.001


class Watcher:
    """Reads the position of `messages` every WATCH_S seconds, once for all waiting callers."""

    def __init__(self, conn: Connection) -> None:
        self._conn, self._position, self._moved = conn, 0, asyncio.Condition()

    async def watch(self) -> None:
        while True:
            rows = await self._conn.execute(
                "SELECT position FROM projection_positions WHERE projection = 'messages' AND build = 'live'"
            )
            row = await rows.fetchone()
            async with self._moved:
                self._position = row[0] if row else 0
                self._moved.notify_all()
            await asyncio.sleep(WATCH_S)

    async def seen(self, seq: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self._position >= seq)


async def measure(stand: Stand) -> list[Row]:
    count = RATE * stand.sized(12, 3)
    events = list(stand.conversations.events(2 * count))
    async with stand.empty_log() as log, stand.fresh_database() as url, connection_pool(url) as pool:
        async with following(log, url), watching(url) as watcher:
            ours = await at_rate(events[:count], lambda event: _append_and_see(log, watcher, event))
        async with pool.connection() as conn:
            await conn.execute("CREATE TABLE plain (body bytea)")
        floor = await at_rate(events[count:], lambda event: _publish_and_insert(log, pool, event))
    return [_row(name, share, ours, floor) for name, share in (("p50", 0.5), ("p99", 0.99))]


async def at_rate(events: Sequence[Event], work: Callable[[Event], Awaitable[None]]) -> list[float]:
    """Returns for each event the milliseconds from the time when it was due; late events do not delay later ones."""
    start = time.perf_counter() + 0.1

    async def timed(number: int, event: Event) -> float:
        due = start + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await work(event)
        return 1000 * (time.perf_counter() - due)

    return await asyncio.gather(*(timed(number, event) for number, event in enumerate(events)))


@contextlib.asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watcher]:
    async with await connect(url) as conn:
        watcher = Watcher(conn)
        task = asyncio.create_task(watcher.watch())
        try:
            yield watcher
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _append_and_see(log: Log, watcher: Watcher, event: Event) -> None:
    await watcher.seen((await log.append(event)).seq)


async def _publish_and_insert(log: Log, pool: Pool, event: Event) -> None:
    out = outgoing(event, None, log.nc.max_payload)
    await log.nc.request(out.subject, out.body, timeout=10, headers=out.headers)
    async with pool.connection() as conn:
        await conn.execute("INSERT INTO plain VALUES (%s)", (out.body,))


def _row(name: str, share: float, ours: Sequence[float], floor: Sequence[float]) -> Row:
    mine, theirs = quantile(ours, share), quantile(floor, share)
    method = (
        f"{len(ours):,} turns at {RATE} a second, from when each was due until the position of `messages` has passed "
        "it, all projections running, asked once a millisecond. Floor: one awaited publish, then one committed insert."
    )
    return Row(f"append → visible, {name}", ms(mine), ms(theirs), mine / theirs, None, None, method)
