"""The embedder: vectors into the content-addressed cache, then an event that says they are there (L7)."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

from turnlog.agent.models.protocol import Embedder, Usage
from turnlog.agent.settings import Settings
from turnlog.consumers.embedding_cache import SOURCE, Pending, fill_cache, metered
from turnlog.consumers.embedding_memories import embed_memories
from turnlog.consumers.inbox import Later
from turnlog.consumers.reactors.budget import Ledger, ledger
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import ChunksEmbedded, Event
from turnlog.events.frozen import ERASED
from turnlog.projectors.vectors import NEIGHBOUR_INDEXES
from turnlog.projectors.writer import Connection

logger = logging.getLogger("turnlog.consumers")
BATCH = 128
LOCK = 0x656D6264
OnProgress = Callable[[float, float | None], None]
# Of somebody who was erased a thread of several people keeps empty turns. A vector of one finds nothing, and the event
# that tells of it would make a new key for a user who is gone.
_SAYS_SOMETHING = f"chunk <> '{ERASED}'"


async def embed_pending(
    runtime: Runtime,
    embedder: Embedder,
    on_progress: OnProgress = lambda done, total: None,
    stop: asyncio.Event | None = None,
    only: tuple[str, Sequence[str]] | None = None,
) -> int:
    """Embeds every memory and chunk without a vector of the present model, newest first; returns how many.

    only: (tenant, threads) to do the chunks of these alone.

    One process at a time does this (advisory lock); another one returns 0 at once. Ends early when stop is set
    or the hourly budget is spent; what is left is found again. Raises ModelError.
    """
    async with runtime.pool.connection() as conn:
        row = await (await conn.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,))).fetchone()
        if row is None or not row[0]:
            return 0
        try:
            return await _embed_all(runtime, conn, embedder, on_progress, stop or asyncio.Event(), only)
        finally:
            await conn.execute("SELECT pg_advisory_unlock(%s)", (LOCK,))


async def _embed_all(
    runtime: Runtime,
    conn: Connection,
    embedder: Embedder,
    on_progress: OnProgress,
    stop: asyncio.Event,
    only: tuple[str, Sequence[str]] | None,
) -> int:
    done, stuck = 0, set[str]()
    budget = embedding_ledger(runtime.settings)
    others = 0 if only else await embed_memories(runtime, conn, embedder, budget, stop)
    while not stop.is_set() and (batch := await pending_chunks(conn, embedder.model, BATCH, stuck, *(only or ()))):
        try:
            await embed_chunks(runtime, conn, embedder, batch, budget)
        except Later as later:
            logger.info("embedder waits: %s", later)
            break
        stuck |= await _still_pending(conn, embedder.model, batch)
        done += len(batch)
        on_progress(done, done + await pending_count(conn, embedder.model))
    if done:
        await conn.execute(NEIGHBOUR_INDEXES.encode())
    return done + others


def embedding_ledger(settings: Settings) -> Ledger:
    return ledger("embedder", settings, is_local=settings.offline_embeddings)


async def embed_chunks(
    runtime: Runtime, conn: Connection, embedder: Embedder, batch: Sequence[Pending], budget: Ledger
) -> None:
    """Cache, then events, then wait until P5 shows them, so that nobody embeds the same again. Raises Later."""
    events = await embedding_events(conn, embedder, batch, budget)
    await runtime.log.append_many(events)
    await runtime.settle(names=("vectors",))


async def embedding_events(
    conn: Connection, embedder: Embedder, batch: Sequence[Pending], budget: Ledger
) -> list[Event]:
    """Fills the cache with what it lacks and returns one chunks_embedded a thread, and the usage if any.

    Raises ModelError, Later.
    """
    spent: list[Usage] = []
    dimensions = await fill_cache(conn, embedder, batch, budget, spent)
    threads: defaultdict[tuple[str, str, str | None], list[str]] = defaultdict(list)
    for one in batch:
        threads[(one.tenant, one.thread, one.user)].append(one.id)
    events = [_embedded(place, ids, embedder.model, dimensions) for place, ids in threads.items()]
    first = batch[0]
    return events + [metered(first, usage) for usage in spent]


async def pending_chunks(
    conn: Connection,
    model: str,
    limit: int,
    stuck: Collection[str] = (),
    tenant: str | None = None,
    threads: Sequence[str] | None = None,
) -> list[Pending]:
    """Chunks with no vector of this model, the newest first; first those with none at all, found by index.

    stuck: ids to leave out, of threads whose events are parked, so that no event can set their vectors.
    threads: of the tenant, to look at them alone.
    """
    for lacking in ("embedding IS NULL", "embedding IS NOT NULL AND embedding_model <> %(model)s"):
        rows = await conn.execute(
            f"SELECT tenant, thread_id, user_id, id, index_text FROM memory_vectors WHERE {lacking} "
            f"AND {_SAYS_SOMETHING} "
            "AND (%(threads)s::text[] IS NULL OR (tenant = %(tenant)s AND thread_id = ANY(%(threads)s))) "
            "AND id <> ALL(%(stuck)s) ORDER BY seq DESC, piece LIMIT %(limit)s".encode(),
            {"model": model, "limit": limit, "stuck": list(stuck), "tenant": tenant, "threads": threads},
        )
        if found := await rows.fetchall():
            return [Pending(*row) for row in found]
    return []


async def _still_pending(conn: Connection, model: str, batch: Sequence[Pending]) -> set[str]:
    rows = await conn.execute(
        "SELECT id FROM memory_vectors WHERE id = ANY(%s) AND embedding_model IS DISTINCT FROM %s",
        ([one.id for one in batch], model),
    )
    return {chunk_id for (chunk_id,) in await rows.fetchall()}


async def pending_count(conn: Connection, model: str | None) -> int:
    """Chunks without a vector of the model; with None those without any."""
    rows = await conn.execute(
        "SELECT count(*) FROM memory_vectors "
        f"WHERE (embedding IS NULL OR embedding_model <> %s::text) AND {_SAYS_SOMETHING}".encode(),
        (model,),
    )
    found = await rows.fetchone()
    return int(found[0]) if found else 0


def _embedded(place: tuple[str, str, str | None], ids: list[str], model: str, dimensions: int) -> Event:
    tenant, thread, user = place
    return Event(
        source=SOURCE,
        time=datetime.now(UTC),
        tenant=tenant,
        thread=thread,
        user=user,
        data=ChunksEmbedded(model=model, dimensions=dimensions, chunk_ids=tuple(ids)),
    )
