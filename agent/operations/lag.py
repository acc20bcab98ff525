"""Measures how far projections and the embedder are behind the log, and finds stopped reactors.

Health checks call this often, so it loads no read models.
"""

import time

from turnlog.agent.answering.request import AGENT
from turnlog.agent.recall.embedding.backlog import Backlog, read_backlog
from turnlog.agent.runtime import Runtime, reactor_consumer
from turnlog.projectors.engine.lag import Lag, lag

# Names of the consumers of the reactors, including `analytics`.
REACTORS = ("memory", "segments", "extraction", "contradictions", "profiles", AGENT, "analytics")
# Settings that disable reactors.
_OPTIONAL = {"extraction": "extract", "contradictions": "compare_memories", "profiles": "enable_summary"}

_WITH_MODEL = {"contradictions", "profiles"}  # reactors that exist only if a language model is configured


async def projection_lag(runtime: Runtime) -> list[Lag]:
    """Returns the lag of every live projection by name and partition. Raises LogUnavailable."""
    async with runtime.pool.connection() as conn:
        return await lag(runtime.log, conn, runtime.settings.stalled_after_s)


async def embedding_backlog(runtime: Runtime) -> Backlog:
    """Returns how many texts of all tenants have no vector of the configured model, and the recent speed of the
    embedder."""
    async with runtime.pool.connection() as conn:
        waits = any(partition.catching_up for partition in await lag(runtime.log, conn))
        return await read_backlog(conn, await runtime.vector_model(), waits)


async def all_derived(runtime: Runtime) -> bool:
    """Returns whether everything that can be derived from the log exists: no reactor has an event to handle, every
    projection is at the head of the log, and every text has a vector. Raises LogUnavailable."""
    for name in REACTORS:
        if not getattr(runtime.settings, _OPTIONAL.get(name, ""), True):
            continue
        info = await reactor_consumer(runtime, name)
        if info.num_pending or info.num_ack_pending if info else name not in _WITH_MODEL:
            return False
    if any(partition.behind for partition in await projection_lag(runtime)):
        return False
    return not (await embedding_backlog(runtime)).texts


async def stuck_reactors(runtime: Runtime) -> list[str]:
    """Returns the reactors that have taken events but have neither finished nor retried one in any process for
    TURNLOG_REACTOR_STALLED_AFTER. A reactor whose model is slow or unavailable is not returned, because it retries.
    Raises LogUnavailable.

    The first call only starts the observation; later calls can return reactors.
    """
    seen, now = runtime.cached(_seen), time.monotonic()
    stuck: list[str] = []
    for name in REACTORS:
        at = await _position(runtime, name)
        if at is None or seen.get(name, (None, 0.0))[0] != at:
            seen[name] = (at or (), now)
        elif now - seen[name][1] > runtime.settings.reactor_stalled_after_s:
            stuck.append(name)
    return stuck


async def _position(runtime: Runtime, name: str) -> tuple[int, ...] | None:
    """Returns a value that changes whenever the reactor takes, finishes or returns an event; None if it has not taken
    any."""
    if not getattr(runtime.settings, _OPTIONAL.get(name, ""), True):
        return None
    info = await reactor_consumer(runtime, name)
    if info is None or not info.num_ack_pending:
        return None
    taken = info.delivered.consumer_seq if info.delivered else 0
    done = info.ack_floor.consumer_seq if info.ack_floor else 0
    return taken, done, info.num_ack_pending


def _seen(_: Runtime) -> dict[str, tuple[tuple[int, ...], float]]:
    """Returns an empty dict, which later contains each reactor's position and the time when this process first saw it
    there."""
    return {}
