"""Vectors of memories: cached, told by an event, and compared with what is alike in the same append (M5)."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Sequence
from uuid import UUID

from turnlog.agent.memories.service import Memories
from turnlog.agent.memories.writing import MemoriesParked, Place
from turnlog.agent.models.protocol import Embedder, Usage
from turnlog.consumers.embedding_cache import Pending, fill_cache, metered
from turnlog.consumers.inbox import Later
from turnlog.consumers.reactors.budget import Ledger
from turnlog.consumers.runtime import Runtime
from turnlog.events.errors import InvalidToken
from turnlog.projectors.memory_tables import memories
from turnlog.projectors.neighbours import ensure_neighbour_index
from turnlog.projectors.writer import Connection

logger = logging.getLogger("turnlog.consumers")
BATCH = 128
NAMES = ("memories",)


async def embed_memories(
    runtime: Runtime, conn: Connection, embedder: Embedder, budget: Ledger, stop: asyncio.Event
) -> int:
    """Embeds every memory without a vector of the present model, oldest first; returns how many.

    Ends early when stop is set or the hourly budget is spent; what is left is found again. Raises ModelError.
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


async def pending_memories(conn: Connection, model: str, limit: int, stuck: Collection[str] = ()) -> list[Pending]:
    """Memories with no vector of this model, the oldest first, so that what is said later is compared with them.

    stuck: ids to leave out, of threads whose events are parked, so that no event can set their vectors.
    """
    for lacking in ("embedding IS NULL", "embedding IS NOT NULL AND embedding_model <> %(model)s"):
        rows = await conn.execute(
            f"SELECT tenant, thread_id, user_id, id::text, content FROM memories WHERE {lacking} "
            "AND status <> 'forgotten' AND id <> ALL(%(stuck)s::uuid[]) ORDER BY seq, id LIMIT %(limit)s".encode(),
            {"model": model, "limit": limit, "stuck": list(stuck)},
        )
        if found := await rows.fetchall():
            return [Pending(*row) for row in found]
    return []


async def _still_pending(conn: Connection, model: str, batch: Sequence[Pending]) -> set[str]:
    rows = await conn.execute(
        "SELECT id::text FROM memories WHERE id = ANY(%s::uuid[]) AND embedding_model IS DISTINCT FROM %s",
        ([one.id for one in batch], model),
    )
    return {id_ for (id_,) in await rows.fetchall()}
