"""The gauges that are read from Postgres and NATS when metrics are collected: lag, dead letters, size of the log."""

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import AsyncIterator
from math import inf

import psycopg
from nats.errors import Error as NatsError
from psycopg_pool import PoolTimeout

from turnlog.agent import metrics
from turnlog.agent.runtime import Runtime
from turnlog.agent.use_cases.lag import projection_lag
from turnlog.events.errors import TurnlogError
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine.lag import Lag

EVERY_S = 15.0
AWAY = (TurnlogError, NatsError, psycopg.Error, PoolTimeout, OSError, TimeoutError)


async def measure(runtime: Runtime) -> None:
    """Sets the gauges. While a server is away they have no series, rather than values of the past."""
    found: list[Lag] = []
    with contextlib.suppress(*AWAY):
        found = await projection_lag(runtime)
    for gauge in (metrics.BEHIND, metrics.STALLED, metrics.REBUILDING, metrics.DEAD_LETTERS):
        gauge.clear()
    for name, partitions in itertools.groupby(found, key=lambda one: one.projection):
        each = list(partitions)
        metrics.BEHIND.labels(name).set(max(one.behind for one in each))
        metrics.STALLED.labels(name).set(any(one.stalled for one in each))
        metrics.REBUILDING.labels(name).set(any(one.rebuilt is not None for one in each))
        metrics.DEAD_LETTERS.labels(name).set(sum(one.parked for one in each))
    with contextlib.suppress(*AWAY):
        await _measure_stream(runtime)


async def _measure_stream(runtime: Runtime) -> None:
    """Without a limit of its own the log can fill the disk, which only NATS of this machine shows."""
    found = await runtime.log.nc.jetstream().stream_info(STREAM)
    limit = float(found.config.max_bytes or -1)
    if limit < 0:
        local = runtime.settings.nats_url is None
        limit = found.state.bytes + shutil.disk_usage(runtime.settings.home).free if local else inf
    metrics.STREAM_BYTES.set(found.state.bytes)
    metrics.STREAM_LIMIT.set(limit)


@contextlib.asynccontextmanager
async def measuring(runtime: Runtime) -> AsyncIterator[None]:
    """Measures every EVERY_S seconds while the block runs."""

    async def repeat(beat: Heartbeat) -> None:
        while True:
            await measure(runtime)
            beat.beat()
            await asyncio.sleep(EVERY_S)

    async with runtime.heartbeats.running("process", "gauges", repeat, asyncio.Event()):
        yield
