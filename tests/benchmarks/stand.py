"""Provides the environment for benchmarks: embedded servers in a separate folder, empty logs and new databases."""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from nats.js.errors import NotFoundError

from tests.benchmarks.conversations import Conversations
from turnlog.consumers.servers import lease, start
from turnlog.events.contracts import Event
from turnlog.events.log import Log, connect_nats
from turnlog.events.stream import StreamOptions
from turnlog.events.subjects import KEYS_STREAM, STREAM
from turnlog.migrations.upgrade import upgrade
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import PROJECTIONS

ROUNDS, QUICK_ROUNDS = 5, 3
_TEMPLATE = "turnlog_bench_template"


@dataclass(frozen=True, slots=True)
class Stand:
    nats_url: str
    server_url: str
    conversations: Conversations
    quick: bool

    @property
    def rounds(self) -> int:
        return QUICK_ROUNDS if self.quick else ROUNDS

    def sized(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextlib.asynccontextmanager
    async def empty_log(self) -> AsyncIterator[Log]:
        """Yields an empty log."""
        nc = await connect_nats(self.nats_url, "turnlog-bench-setup")
        for stream in (STREAM, KEYS_STREAM):
            with contextlib.suppress(NotFoundError):
                await nc.jetstream().delete_stream(stream)
        await nc.close()
        log = await Log.connect(self.nats_url, StreamOptions(), "turnlog-bench")
        try:
            yield log
        finally:
            await log.close()

    @contextlib.asynccontextmanager
    async def fresh_database(self) -> AsyncIterator[str]:
        """Yields the URL of a migrated, empty database."""
        name = f"turnlog_bench_{uuid.uuid4().hex[:12]}"
        await _execute(self.server_url, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        try:
            yield _database_at(self.server_url, name)
        finally:
            await _execute(self.server_url, f"DROP DATABASE {name} WITH (FORCE)")


@contextlib.asynccontextmanager
async def standing(conversations: Conversations, quick: bool) -> AsyncIterator[Stand]:
    """Starts the servers as turnlog does (every batch of the log is synced to disk), and removes them at the end."""
    with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as folder:
        home = Path(folder) / "home"
        async with lease(home):
            servers = await start(home)
            await _execute(servers.database_url, f"CREATE DATABASE {_TEMPLATE}")
            await asyncio.to_thread(upgrade, _database_at(servers.database_url, _TEMPLATE))
            yield Stand(servers.nats_url, servers.database_url, conversations, quick)


async def fill(log: Log, events: Iterable[Event]) -> int:
    """Appends the events and returns their number."""
    left, count = iter(events), 0
    while batch := list(islice(left, 1_000)):
        count += len(await log.append_many(batch))
    return count


async def project(log: Log, database_url: str, watcher: Connection, projections: tuple[Projection, ...]) -> float:
    """Returns the seconds from the start of a runner until its projections have applied the current log."""
    names, head = tuple(projection.name for projection in projections), await log.partition_head(0)
    started = time.perf_counter()
    async with following(log, database_url, projections):
        await wait_for(watcher, names, 0, head, timeout_s=600)
        return time.perf_counter() - started


@contextlib.asynccontextmanager
async def following(
    log: Log, database_url: str, projections: tuple[Projection, ...] = PROJECTIONS
) -> AsyncIterator[None]:
    """Keeps the projections up to date while the block runs."""
    runner = Runner(log, database_url, projections, 0)
    running = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        runner.stop()
        await running


@contextlib.asynccontextmanager
async def worker(stand: Stand, database_url: str) -> AsyncIterator[None]:
    """Runs `turnlog worker projectors` as a separate process while the block runs."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    environment |= {"NATS_URL": stand.nats_url, "DATABASE_URL": database_url, "TURNLOG_PLAINTEXT": "yes"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnlog.consumers.cli", "worker", "projectors"),
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


def _database_at(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def _execute(url: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute(statement.encode())
