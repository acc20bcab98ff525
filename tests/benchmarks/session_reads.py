"""Measures how long reading a session from each level takes, for a process that has or has not read it before."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.benchmarks.contexts import turns
from tests.benchmarks.measuring import Row, milliseconds, ms, quantile, seconds
from tests.benchmarks.stand import Stand, following
from turnlog.agent.conversations.sessions.levels import Level
from turnlog.agent.conversations.sessions.session_memory import ShortTermMemory
from turnlog.agent.conversations.sessions.sessions import Sessions
from turnlog.agent.conversations.sessions.value import MemoryQueryRequest
from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.registry import BY_NAME

THREAD, TURNS, CALLS = "session", 30, 400


@dataclass(frozen=True, slots=True)
class Read:
    """A level from which sessions are read. bound: the target at p50 in milliseconds."""

    level: Level
    what: str
    bound: float | None
    how: str


READS = (
    Read("ram", "a session from memory (L1)", 0.1, "the process has read it before"),
    Read("kv", "a session from the bucket", 2.0, "a new process"),
    Read("postgres", "a session from Postgres", 10.0, "a new process, nothing in the bucket"),
    Read("log", "a session from the log itself", None, "a new process, nothing in the bucket and no row in Postgres"),
)


async def measure(stand: Stand) -> list[Row]:
    calls = stand.sized(CALLS, CALLS // 4)
    async with (
        stand.empty_log() as log,
        stand.fresh_database() as url,
        stand.fresh_database() as unprojected_url,
        connection_pool(url) as pool,
        connection_pool(unprojected_url) as unprojected,
        following(log, url),
    ):
        await _talk(log, pool, turns(stand.conversations.texts(2_000))[: 2 * TURNS])
        async with pool.connection() as conn:
            await wait_for(conn, tuple(BY_NAME), 0, await log.partition_head(0))
        reads = [_row(read, await _took(read.level, calls, log, pool, unprojected)) for read in READS]
        return [*reads, await _memory_context(log, pool, calls)]


async def _talk(log: Log, pool: Pool, texts: list[str]) -> None:
    async with Sessions(log, pool, "default") as sessions:
        await sessions.create(THREAD, user="ann")
        for question, answer in zip(texts[::2], texts[1::2], strict=True):
            said = [TurnRecorded(role="user", content=question), TurnRecorded(role="assistant", content=answer)]
            await sessions.record(THREAD, said, user="ann")


async def _took(level: Level, calls: int, log: Log, pool: Pool, unprojected: Pool) -> list[float]:
    """Returns the milliseconds of each call, after checking that each was answered from this level."""
    took = []
    async with _reader(log, pool) as warm:
        await warm.get(THREAD)
        for _ in range(calls):
            if level == "ram":
                took.append(await _read(level, warm))
                continue
            if level != "kv":
                await _empty_buckets(log)
            async with _reader(log, unprojected if level == "log" else pool) as fresh:
                took.append(await _read(level, fresh))
    return took


@asynccontextmanager
async def _reader(log: Log, pool: Pool) -> AsyncIterator[Sessions]:
    async with pool.connection():
        pass  # opens a connection, because a running process has one open
    async with Sessions(log, pool, "default") as sessions:
        yield sessions


async def _read(level: Level, sessions: Sessions) -> float:
    levels: list[Level] = []

    async def get() -> None:
        state, came_from = await sessions.get_with_level(THREAD)
        assert state.turn_count == TURNS
        levels.append(came_from)

    took = 1000 * await seconds(get())
    assert levels == [level]
    return took


async def _empty_buckets(log: Log) -> None:
    jetstream = log.nc.jetstream()
    for stream in await jetstream.streams_info():
        if str(stream.config.name).startswith("KV_"):
            await jetstream.purge_stream(str(stream.config.name))


async def _memory_context(log: Log, pool: Pool, calls: int) -> Row:
    asked = MemoryQueryRequest(conversation_id=THREAD, query="What did I say about it before?")
    async with ShortTermMemory(log, pool, Settings(_env_file=None)) as memory:
        context = await memory.query_memory_context(asked)
        assert (context.mode, context.session.flow_context.turn_count) == ("FULL_HISTORY", TURNS)
        took = await milliseconds(lambda: memory.query_memory_context(asked), calls)
    method = (
        f"p50 / p99 of {calls} calls of `query_memory_context` for a session of {TURNS} turns with a new question, "
        f"{context.estimated_tokens:,} tokens counted; the process has read it before."
    )
    return Row("a memory context of a session", _both(took), "none", None, None, None, method)


def _row(read: Read, took: list[float]) -> Row:
    method = f"p50 / p99 of {len(took)} reads of a session of {TURNS} turns; {read.how}."
    if read.bound is None:
        return Row(read.what, _both(took), "none", None, None, None, method)
    method += " Floor: the bound that p50 must keep."
    share = quantile(took, 0.5) / read.bound
    return Row(read.what, _both(took), _short(read.bound), share, None, ("<=", 1.0), method)


def _both(took: list[float]) -> str:
    return f"{_short(quantile(took, 0.5))} / {_short(quantile(took, 0.99))}"


def _short(milliseconds: float) -> str:
    return f"{1000 * milliseconds:.0f} µs" if milliseconds < 1 else ms(milliseconds)
