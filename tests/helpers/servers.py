"""Helps tests with their servers: reads rows, waits for conditions, runs projectors, finds leftover processes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import nats
import psutil
import psycopg
from helpers.sample_events import turn
from nats.js.errors import NotFoundError

from turnlog.consumers.servers.processes import wait_until
from turnlog.events.log import Log
from turnlog.events.subjects import KEYS_STREAM, SESSION_BUCKET, STREAM
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.verify import Difference, verify_several


def now() -> datetime:
    return datetime.now(UTC)


def database_at(database_url: str, name: str) -> str:
    """Returns the URL of another database on the same server."""
    return urlunsplit(urlsplit(database_url)._replace(path=f"/{name}"))


async def empty_nats(nats_url: str) -> None:
    """Deletes the log, the users' keys and the sessions of a server."""
    async with await nats.connect(nats_url, connect_timeout=60) as client:
        for stream in (STREAM, KEYS_STREAM, f"KV_{SESSION_BUCKET}"):
            with contextlib.suppress(NotFoundError):
                await client.jetstream().delete_stream(stream)


async def execute(database_url: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as conn:
        await conn.execute(statement.encode())


async def rows(conn: Connection, query: str, *params: Any) -> list[Any]:
    """Returns the query's rows as tuples."""
    return await (await conn.execute(query.encode(), params or None)).fetchall()


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float = 180.0) -> None:
    """Waits until the condition is true; fails the test if it is not true in time."""
    assert await wait_until(holds, lambda: True, timeout_s)


async def unlike_a_rebuild(
    log: Log, database_url: str, projections: Sequence[Projection] = PROJECTIONS
) -> dict[str, tuple[Difference, ...]]:
    """Returns the projections whose rows differ from a rebuild, compared in one pass over the log."""
    results = await verify_several(log, database_url, projections)
    return {result.projection: result.differences for result in results if not result.clean}


async def parked(conn: Connection, projection: str) -> list[tuple[int, str, str]]:
    """Returns (seq, reason, status) of a projection's dead letters, in order."""
    query = "SELECT seq, reason, status FROM dead_letters WHERE projection = %s AND build = 'live' ORDER BY seq"
    return await rows(conn, query, projection)


@asynccontextmanager
async def running_projector(
    log: Log, database_url: str, projections: Sequence[Projection] = PROJECTIONS, partition: int = 0, **options: Any
) -> AsyncIterator[Runner]:
    """Yields a runner that works while the block runs and is cancelled at its end. options: pauses, as Runner takes
    them."""
    runner = Runner(log, database_url, projections, partition, **options)
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        runner.stop()  # asyncio.wait_for may lose a cancellation that comes with its result (Python 3.11)
        with contextlib.suppress(asyncio.CancelledError):
            await task


def processes_left_in(folder: Path) -> list[str]:
    """Returns every process that works in `folder` or names it."""
    left = []
    for process in psutil.process_iter(["name", "cwd", "cmdline", "status"]):
        info = process.info
        texts = [info["cwd"] or "", *(info["cmdline"] or [])]
        if info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in text for text in texts):
            left.append(f"{process.pid} {info['name']}")
    return left


def files_with(folder: Path, strings: Iterable[str]) -> set[Path]:
    """Returns the files below `folder` that contain one of the strings; servers may remove files meanwhile."""
    paths: set[Path] = set()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        with contextlib.suppress(FileNotFoundError):
            body = path.read_bytes()
            paths |= {path} if any(string.encode() in body for string in strings) else set()
    return paths


async def end_deduplication_window(log: Log) -> None:
    """Ends JetStream's deduplication window, as a wait of two minutes would. Returns when JetStream has forgotten the
    stored message ids."""
    js, probe = log.nc.jetstream(), turn(thread="probe")
    config = (await js.stream_info(STREAM)).config

    async def forgotten() -> bool:
        return not (await log.append(probe)).duplicate

    for window_s in (0.1, 0.2) * 5:  # the server once kept the old window for a minute
        config.duplicate_window = window_s
        await js.update_stream(config)
        await log.append(probe)
        if await wait_until(forgotten, lambda: True, 6.0):
            return
    raise AssertionError("the deduplication window did not end")
