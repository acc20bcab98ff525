"""Collects the metrics of all processes. Sets the gauges whose values come from Postgres and NATS: lag, dead letters,
broken loops, memories by tier, size of the log."""

import asyncio
import contextlib
import itertools
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import psycopg
from nats.errors import Error as NatsError
from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector
from psycopg_pool import PoolTimeout

from turnlog.agent import metrics
from turnlog.agent.memory.deciding.policy import Policy
from turnlog.agent.operations.all_processes import Reply, ask_processes
from turnlog.agent.operations.breakers import list_breakers
from turnlog.agent.operations.lag import projection_lag
from turnlog.agent.operations.role_processes import deaths, faults, processes
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import OtherLog, TurnlogError
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine.lag import Lag
from turnlog.projectors.models.memories.policy_lookup import tier_counts

EVERY_S = 15.0
TIERS_EVERY_S = 30.0
AWAY = (TurnlogError, NatsError, psycopg.Error, PoolTimeout, OSError, TimeoutError)


async def measure(runtime: Runtime) -> None:
    """Sets the gauges. While a server is unavailable, the gauges of projections have no series instead of old
    values."""
    lags: list[Lag] = []
    try:
        lags = await projection_lag(runtime)
        metrics.OTHER_LOG.set(0)
    except OtherLog:
        metrics.OTHER_LOG.set(1)
    except AWAY:
        pass
    with contextlib.suppress(*AWAY):
        running = await processes(runtime)
        metrics.BROKEN_LOOPS.set(len(faults(running)))
        metrics.DEAD_PROCESSES.set(len(deaths(running)))
    for gauge in (metrics.BEHIND, metrics.STALLED, metrics.REBUILDING, metrics.DEAD_LETTERS):
        gauge.clear()
    for name, partitions in itertools.groupby(lags, key=lambda partition: partition.projection):
        each = list(partitions)
        metrics.BEHIND.labels(name).set(max(partition.behind for partition in each))
        metrics.STALLED.labels(name).set(any(partition.stalled for partition in each))
        metrics.REBUILDING.labels(name).set(any(partition.rebuilt is not None for partition in each))
        metrics.DEAD_LETTERS.labels(name).set(sum(partition.parked for partition in each))
    with contextlib.suppress(*AWAY):
        await _measure_tiers(runtime)
    with contextlib.suppress(*AWAY):
        await _measure_stream(runtime)


async def _measure_tiers(runtime: Runtime) -> None:
    """Measures the tiers, at most every TIERS_EVERY_S seconds, because this reads every memory."""
    measured = runtime.cached(_tiers_measured)
    if measured and time.monotonic() - measured[-1] < TIERS_EVERY_S:
        return
    policy = Policy.of(runtime.settings)
    async with runtime.pool.connection() as conn:
        counts = await tier_counts(conn, asdict(policy), [total for total, _ in policy.tiers])
    for tier, count in zip([*(tier for _, tier in policy.tiers), "ARCHIVE"], counts, strict=True):
        metrics.TIERS.labels(tier).set(count)
    measured[:] = [time.monotonic()]


def _tiers_measured(_: Runtime) -> list[float]:
    """Returns an empty list, which later contains the time of the last measurement."""
    return []


async def whole_page(runtime: Runtime) -> bytes:
    """Returns the metrics of all processes in the format of Prometheus, labelled with role and process; metrics that
    are read from the servers have neither label."""
    await measure(runtime)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(await ask_processes(runtime, "metrics")))
    return generate_latest(registry)


async def whole_summary(runtime: Runtime) -> dict[str, Any]:
    """Returns the main numbers of all processes since their starts."""
    await measure(runtime)
    samples = [(s.name, s.labels, s.value) for family in _measured() for s in family.samples]
    for reply in await ask_processes(runtime, "metrics"):
        samples += [tuple(sample) for _, _, _, family_samples in reply.found for sample in family_samples]
    states = {circuit.service: circuit.state for circuit in await list_breakers(runtime)}
    return metrics.summary(samples) | {"circuitBreakers": states}


@dataclass(frozen=True, eq=False)
class _Families(Collector):
    replies: Sequence[Reply]

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for reply in {reply.process: reply for reply in self.replies}.values():
            of = {"role": reply.role, "process": reply.process}
            for name, about, kind, samples in reply.found:
                family = families.setdefault(name, Metric(name, about, kind))
                for sample, labels, value in samples:
                    family.add_sample(sample, {**labels, **of}, value)
        return [*_measured(), *families.values()]


def _measured() -> list[Metric]:
    return [family for family in REGISTRY.collect() if family.name in metrics.MEASURED]


async def _measure_stream(runtime: Runtime) -> None:
    """Measures the size of the stream and its limit. A log without a configured limit can fill the disk; the free space
    is known only if NATS runs on this machine."""
    info = await runtime.log.nc.jetstream().stream_info(STREAM)
    limit = float(info.config.max_bytes or -1)
    if limit < 0:
        local = runtime.settings.nats_url is None
        limit = info.state.bytes + shutil.disk_usage(runtime.settings.home).free if local else inf
    metrics.STREAM_BYTES.set(info.state.bytes)
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
