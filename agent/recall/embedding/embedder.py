"""Implements the embedder: it puts vectors into the content-addressed cache, then appends an event that names their
chunks or memories. For memories, the same append closes duplicates."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import LiteralString
from uuid import UUID

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.deciding.writing import MemoriesParked, Place
from turnlog.agent.models.protocol import LOCAL, Embedder, Usage
from turnlog.agent.models.spending_limit import Ledger, ledger
from turnlog.agent.recall.embedding.backlog import note_round
from turnlog.agent.recall.embedding.cache import SOURCE, fill_cache, metered
from turnlog.agent.recall.embedding.pending import Pending, pending_chunks, pending_count, pending_memories
from turnlog.agent.retry_later import RetryLater
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.events.contracts import ChunksEmbedded, Event
from turnlog.events.errors import InvalidToken
from turnlog.events.progress import OnProgress, no_progress
from turnlog.projectors.engine.locks import LockFor, work_lock
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.projection import memory_vectors
from turnlog.projectors.models.memories.tables import memories
from turnlog.projectors.models.neighbours import ensure_neighbour_index

logger = logging.getLogger("turnlog.agent")
# The most texts and characters of one round. New texts wait for the end of a round, and an interrupted round is lost.
BATCH, BATCH_CHARS = 64, 16_000
STORED_AT_ONCE = 16  # vectors; new turns wait while the projector adds them to the neighbour index
MEMORIES_BATCH = 128
_PENDING_CHUNKS = "SELECT id FROM memory_vectors WHERE id = ANY(%s) AND embedding_model IS DISTINCT FROM %s"
_PENDING_MEMORIES = "SELECT id::text FROM memories WHERE id = ANY(%s::uuid[]) AND embedding_model IS DISTINCT FROM %s"


async def embed_pending(
    runtime: Runtime,
    embedder: Embedder,
    on_progress: OnProgress = no_progress,
    stop: asyncio.Event | None = None,
    only: tuple[str, Sequence[str]] | None = None,
    pauses: Callable[[], bool] = lambda: False,
) -> int:
    """Embeds every memory without a vector of the present model, oldest first, then every such chunk, most recently
    active threads first; returns their number.

    only: (tenant, threads) to embed only the chunks of these threads, and no memories. on_progress: gets the number of
    chunks so far and in all.

    Only one process at a time does this (advisory lock); in others the call returns 0 at once. Ends early if `stop` is
    set, the hourly budget is spent, or `pauses` returns True after a round; the next call continues. Raises ModelError.
    """
    await embedder.ready()
    async with runtime.pool.connection() as conn, work_lock(conn, LockFor.EMBEDDING, "embedder") as held:
        if not held:
            return 0
        return await _embed_all(runtime, conn, embedder, on_progress, stop or asyncio.Event(), only, pauses)


async def _embed_all(
    runtime: Runtime,
    conn: Connection,
    embedder: Embedder,
    on_progress: OnProgress,
    stop: asyncio.Event,
    only: tuple[str, Sequence[str]] | None,
    pauses: Callable[[], bool],
) -> int:
    done, stuck = 0, set[str]()
    budget = embedding_ledger(runtime.settings, embedder)
    of_memories = 0 if only else await embed_memories(runtime, conn, embedder, budget, stop, pauses)
    total = 0 if on_progress is no_progress else await pending_count(conn, embedder.model, None, *(only or ()))
    while not stop.is_set() and (pending := await pending_chunks(conn, embedder.model, BATCH, stuck, *(only or ()))):
        batch, started = _within_chars(pending), time.perf_counter()
        try:
            await embed_chunks(runtime, conn, embedder, batch, budget)
        except RetryLater as later:
            logger.info("embedder waits: %s", later)
            break
        await note_round(conn, len(batch), time.perf_counter() - started)
        stuck |= await _still_pending(conn, _PENDING_CHUNKS, embedder.model, batch)
        done += len(batch)
        on_progress(done, max(done, total))
        if pauses():
            break
    return done + of_memories


def _within_chars(pending: Sequence[Pending]) -> Sequence[Pending]:
    """Returns the first texts that have at most BATCH_CHARS characters together, but at least one text."""
    sizes = accumulate(len(chunk.text) for chunk in pending)
    return pending[: next((max(1, at) for at, size in enumerate(sizes) if size > BATCH_CHARS), len(pending))]


def embedding_ledger(settings: Settings, embedder: Embedder) -> Ledger:
    return ledger("embedder", settings, is_local=embedder.provider == LOCAL)


async def embed_chunks(
    runtime: Runtime, conn: Connection, embedder: Embedder, batch: Sequence[Pending], budget: Ledger
) -> None:
    """Adds missing vectors to the cache, appends the usage and, for every STORED_AT_ONCE chunks, one chunks_embedded
    per thread and user. Waits until memory_vectors has the vectors, so that the chunks are no longer pending.

    Raises ModelError, RetryLater.
    """
    spent: list[Usage] = []
    dimensions = await fill_cache(conn, embedder, batch, budget, spent)
    await ensure_neighbour_index(conn, memory_vectors, embedder.model, dimensions)
    usage = [metered(batch[0], call) for call in spent]
    for first in range(0, len(batch), STORED_AT_ONCE):
        threads: defaultdict[tuple[str, str, str | None], list[str]] = defaultdict(list)
        for chunk in batch[first : first + STORED_AT_ONCE]:
            threads[(chunk.tenant, chunk.thread, chunk.user)].append(chunk.id)
        embedded = [_embedded(thread_key, ids, embedder.model, dimensions) for thread_key, ids in threads.items()]
        await runtime.log.append_many(embedded + (usage if first == 0 else []))
        await runtime.wait_until_projected(names=("vectors",))


async def _still_pending(conn: Connection, query: LiteralString, model: str, batch: Sequence[Pending]) -> set[str]:
    rows = await conn.execute(query, ([pending.id for pending in batch], model))
    return {id_ for (id_,) in await rows.fetchall()}


def _embedded(thread_key: tuple[str, str, str | None], ids: list[str], model: str, dimensions: int) -> Event:
    tenant, thread, user = thread_key
    data = ChunksEmbedded(model=model, dimensions=dimensions, chunk_ids=tuple(ids))
    return Event(source=SOURCE, tenant=tenant, thread=thread, user=user, data=data)


async def embed_memories(
    runtime: Runtime,
    conn: Connection,
    embedder: Embedder,
    budget: Ledger,
    stop: asyncio.Event,
    pauses: Callable[[], bool],
) -> int:
    """Embeds every memory without a vector of the present model, oldest first; returns their number.

    Ends early if `stop` is set, the hourly budget is spent, or `pauses` returns True after a round; the next call
    continues. Raises ModelError.
    """
    done, stuck, service = 0, set[str](), Memories(runtime.log, runtime.pool)
    while not stop.is_set() and (batch := await pending_memories(conn, embedder.model, MEMORIES_BATCH, stuck)):
        try:
            await _embed_some_memories(runtime, conn, embedder, budget, service, batch)
        except RetryLater as later:
            logger.info("embedder waits: %s", later)
            break
        await runtime.wait_until_projected(names=("memories",))
        stuck |= await _still_pending(conn, _PENDING_MEMORIES, embedder.model, batch)
        done += len(batch)
        if pauses():
            break
    return done


async def _embed_some_memories(
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
    for memory in batch:
        threads[(memory.tenant, memory.user or "", memory.thread)].append(UUID(memory.id))
    for (tenant, user, thread), ids in threads.items():
        try:
            await service.embedded(Place.of_thread(tenant, user, thread), embedder.model, dimensions, ids)
        except (MemoriesParked, InvalidToken) as error:
            logger.info("embedder passes over memories: %s", error)
