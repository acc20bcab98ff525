"""Vectors of memories: cached, then named by an event in the append that also closes duplicates (M5)."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from uuid import UUID

from turnlog.agent.embedding.cache import fill_cache, metered
from turnlog.agent.embedding.pending import Pending, pending_memories
from turnlog.agent.later import Later
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.deciding.writing import MemoriesParked, Place
from turnlog.agent.models.budget import Ledger
from turnlog.agent.models.protocol import Embedder, Usage
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import InvalidToken
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.tables import memories
from turnlog.projectors.models.neighbours import ensure_neighbour_index

logger = logging.getLogger("turnlog.agent")
BATCH = 128
NAMES = ("memories",)


async def embed_memories(
    runtime: Runtime,
    conn: Connection,
    embedder: Embedder,
    budget: Ledger,
    stop: asyncio.Event,
    pauses: Callable[[], bool],
) -> int:
    """Embeds every memory without a vector of the present model, oldest first; returns how many.

    Ends early when stop is set, the hourly budget is spent, or `pauses` returns True after a round; what is left is
    found again. Raises ModelError.
    """
    done, stuck, service = 0, set[str](), Memories(runtime.log, runtime.pool)
    while not stop.is_set() and (batch := await pending_memories(conn, embedder.model, BATCH, stuck)):
        try:
            await _embed(runtime, conn, embedder, budget, service, batch)
        except Later as later:
            logger.info("embedder waits: %s", later)
            break
        await runtime.settle(names=NAMES)
        stuck |= await _still_pending(conn, embedder.model, batch)
        done += len(batch)
        if pauses():
            break
    return done


async def _embed(
    runtime: Runtime,
    conn: Connection,
    embedder: Embedder,
    budget: Ledger,
    service: Memories,
    batch: Sequence[Pending],
) -> None:
    spent: list[Usage] = []
    dimensions = await fill_cache(conn, embedder, batch, budget, spent)
    await ensure_neighbour_index(conn, memories, embedder.model, dimensions)
    if spent:
        await runtime.log.append_many([metered(batch[0], usage) for usage in spent])
    threads: defaultdict[tuple[str, str, str], list[UUID]] = defaultdict(list)
    for one in batch:
        threads[(one.tenant, one.user or "", one.thread)].append(UUID(one.id))
    for (tenant, user, thread), ids in threads.items():
        try:
            await service.embedded(Place.of_thread(tenant, user, thread), embedder.model, dimensions, ids)
        except (MemoriesParked, InvalidToken) as error:
            logger.info("embedder passes over memories: %s", error)


async def _still_pending(conn: Connection, model: str, batch: Sequence[Pending]) -> set[str]:
    rows = await conn.execute(
        "SELECT id::text FROM memories WHERE id = ANY(%s::uuid[]) AND embedding_model IS DISTINCT FROM %s",
        ([one.id for one in batch], model),
    )
    return {id_ for (id_,) in await rows.fetchall()}
