"""Measures writing memories of a user who already has 100,000, which must take as long as for other users."""

import itertools
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from uuid import NAMESPACE_OID, uuid5

from uuid_utils.compat import uuid7

from tests.benchmarks.measuring import Row, Side, interleaved, milliseconds, ms, per_second, quantile, ratio, seconds
from tests.benchmarks.stand import Stand, fill, worker
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.runtime import Pool
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import Event, Memory, MemoryRecorded, MemorySource
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.memories.text import content_key
from turnlog.projectors.models.registry import BY_NAME

Call = Callable[[], Awaitable[None]]
USER, THREAD = "ann", memory_thread("ann")
HELD, CALLS, BOUND_MS = 100_000, 60, 15.0
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
WORDS = ("tea", "coffee", "boats", "hiking", "Lisbon", "chess", "essays", "trains", "soup", "maps", "跑步", "音乐")


async def measure(stand: Stand) -> list[Row]:
    held, calls = stand.sized(HELD, HELD // 10), stand.sized(CALLS, CALLS // 4)
    async with (
        stand.empty_log() as log,
        stand.fresh_database() as url,
        connection_pool(url) as pool,
        worker(stand, url),
    ):
        await fill(log, (_recorded(_said(n)) for n in range(held)))
        projected = held / await seconds(settled(log, pool))
        sides = _Sides(log, pool, held, calls)
        every = (sides.append, sides.look_up, sides.remember, sides.contradict)
        appended, looked, remembered, contradicted = await interleaved(stand.rounds, *map(sides.side, every))
        in_turn = await milliseconds(sides.remember, calls)
    return [
        _remember("remember something new", remembered, appended, looked, held),
        _remember("remember what contradicts", contradicted, appended, looked, held),
        Row(
            f"remember one after the other, {held:,} memories",
            f"{ms(quantile(in_turn, 0.5))} p50, {ms(quantile(in_turn, 0.95))} p95",
            *("", None, None, None),
            "Each call at once after the one before it, and so behind the projector, which must have shown that one.",
        ),
        Row(
            f"memories projected, {held:,} of one user",
            per_second(projected),
            *("", None, None, None),
            "From the last append to the last row, by a worker of its own that applies all projections.",
        ),
    ]


def _remember(what: str, ours: list[float], appended: list[float], looked: list[float], held: int) -> Row:
    floor = [a + b for a, b in zip(appended, looked, strict=True)]
    typical, spread = ratio(ours, floor)
    return Row(
        f"{what}, {held:,} memories of one user",
        f"{ms(median(ours))} (asked for: {BOUND_MS:g} ms)",
        f"{ms(median(appended))} + {ms(median(looked))}",
        typical,
        spread,
        None,
        "Means of a round's calls, on a log that is projected; without embedding, which comes later. Floor: one raw "
        "append of such an event, and one raw look-up by the index of words.",
    )


class _Sides:
    """The compared operations. Each call is timed alone, after the projector has caught up."""

    def __init__(self, log: Log, pool: Pool, held: int, times: int) -> None:
        self._log, self._pool, self._held, self._times = log, pool, held, times
        self._memories = Memories(log, pool)
        self._numbers = itertools.count(held)

    def side(self, call: Call) -> Side:
        """Returns a side that measures the mean milliseconds of a round's calls."""

        async def round_() -> float:
            total = 0.0
            for _ in range(self._times):
                await settled(self._log, self._pool)
                total += await seconds(call())
            return 1000 * total / self._times

        return round_

    async def append(self) -> None:
        """Appends an event, which is the minimal cost of storing a memory."""
        await self._log.append_many([_recorded(_said(next(self._numbers)))])

    async def look_up(self) -> None:
        key = content_key("FACT", _words(random.randrange(self._held)))
        async with self._pool.connection() as conn:
            rows = await conn.execute(
                "SELECT id FROM memories WHERE tenant = %s AND thread_id = %s AND content_key = %s",
                ("default", THREAD, key),
            )
            assert await rows.fetchone() is not None

    async def remember(self) -> None:
        [outcome] = await self._memories.remember_many("default", USER, [_said(next(self._numbers))])
        assert outcome.what == "recorded"

    async def contradict(self) -> None:
        """Adds a memory with another value under an existing key, which closes the old memory in the same append."""
        number = next(self._numbers)
        key = _said(random.randrange(0, self._held, 2)).dedupe_key
        newer = _said(number).model_copy(update={"dedupe_key": key})
        [outcome] = await self._memories.remember_many("default", USER, [newer])
        assert outcome.what == "recorded"


async def settled(log: Log, pool: Pool) -> None:
    async with pool.connection() as conn:
        await wait_for(conn, tuple(BY_NAME), 0, await log.partition_head(0), timeout_s=600)


def _words(number: int) -> str:
    """Returns different English and Chinese words for each number."""
    picked = random.Random(number)
    return f"I like {' and '.join(picked.sample(WORDS, 3))} since day {number}"


def _said(number: int) -> Memory:
    at, content = BEGIN + timedelta(minutes=number), _words(number)
    source = MemorySource(thread="t", seq=number + 1, event_id=uuid5(NAMESPACE_OID, content), quote=content, said_at=at)
    return Memory(
        id=uuid5(source.event_id, "memory"),
        kind="FACT",
        content=content,
        importance=0.8,
        confidence=0.9,
        origin="rule",
        dedupe_key=None if number % 2 else f"key {number}",
        valid_from=at,
        sources=(source,),
    )


def _recorded(memory: Memory) -> Event:
    data = MemoryRecorded(memory=memory)
    return Event(id=uuid7(), time=BEGIN, tenant="default", thread=THREAD, user=USER, data=data)
