"""The embedder: vectors into the content-addressed cache, then an event that says they are there (L7)."""

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pgvector import HalfVector

from turnlog.agent.models.errors import ModelRefused
from turnlog.agent.models.protocol import Embedder, Usage, Vectors
from turnlog.agent.settings import Settings
from turnlog.consumers.inbox import Later
from turnlog.consumers.reactors.budget import Ledger, ledger
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import ChunksEmbedded, Event
from turnlog.projectors.vectors import NEIGHBOUR_INDEXES
from turnlog.projectors.writer import Connection

logger = logging.getLogger("turnlog.consumers")
SOURCE = "turnlog/embedder"
BATCH = 128
CHARS_PER_TOKEN = 3  # to estimate; the server counts
LOCK = 0x656D6264
OnProgress = Callable[[float, float | None], None]


@dataclass(frozen=True, slots=True)
class Pending:
    tenant: str
    thread: str
    user: str | None
    chunk_id: str
    text: str

    @property
    def text_hash(self) -> bytes:
        return hashlib.sha256(self.text.encode()).digest()


async def embed_pending(
    runtime: Runtime,
    embedder: Embedder,
    on_progress: OnProgress = lambda done, total: None,
    stop: asyncio.Event | None = None,
    only: tuple[str, Sequence[str]] | None = None,
) -> int:
    """Embeds every chunk without a vector of the present model, newest first; returns how many.

    only: (tenant, threads) to do these alone.

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
    return done


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
    dimensions = await _fill_cache(conn, embedder, batch, budget, spent)
    threads: defaultdict[tuple[str, str, str | None], list[str]] = defaultdict(list)
    for one in batch:
        threads[(one.tenant, one.thread, one.user)].append(one.chunk_id)
    events = [_embedded(place, ids, embedder.model, dimensions) for place, ids in threads.items()]
    first = batch[0]
    return events + [_metered(first, usage) for usage in spent]


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
        ([one.chunk_id for one in batch], model),
    )
    return {chunk_id for (chunk_id,) in await rows.fetchall()}


async def _fill_cache(
    conn: Connection, embedder: Embedder, batch: Sequence[Pending], budget: Ledger, spent: list[Usage]
) -> int:
    """Embeds what is missing; returns the dimensions of the model's vectors."""
    texts = {one.text_hash: one.text for one in batch}
    rows = await conn.execute(
        "SELECT text_hash FROM embedding_cache WHERE model = %s AND text_hash = ANY(%s)",
        (embedder.model, list(texts)),
    )
    known = {bytes(found) for (found,) in await rows.fetchall()}
    missing = {key: text for key, text in texts.items() if key not in known}
    dimensions = await _cached_dimensions(conn, embedder.model)
    if not missing:
        return dimensions
    await budget.admit(conn, sum(len(text) for text in missing.values()) // CHARS_PER_TOKEN)
    vectors = await embedder.embed_passages(list(missing.values()), spent.append)
    for usage in spent:
        await budget.book(conn, usage)
    if dimensions not in (0, vectors.shape[1]):
        raise ModelRefused(
            f"{embedder.model} gave vectors of {vectors.shape[1]} dimensions, earlier ones have {dimensions}; "
            "another model needs another name in MEMORY_EMBEDDING_MODEL"
        )
    await _store(conn, embedder.model, list(missing), vectors)
    return int(vectors.shape[1])


async def _cached_dimensions(conn: Connection, model: str) -> int:
    """0 when nothing was embedded by this model."""
    rows = await conn.execute("SELECT vector_dims(embedding) FROM embedding_cache WHERE model = %s LIMIT 1", (model,))
    found = await rows.fetchone()
    return int(found[0]) if found else 0


async def _store(conn: Connection, model: str, hashes: list[bytes], vectors: Vectors) -> None:
    await conn.cursor().executemany(
        "INSERT INTO embedding_cache (model, text_hash, embedding) VALUES (%s, %s, %s::halfvec) ON CONFLICT DO NOTHING",
        [(model, key, HalfVector(vector).to_text()) for key, vector in zip(hashes, vectors, strict=True)],
    )


async def pending_count(conn: Connection, model: str | None) -> int:
    """Chunks without a vector of the model; with None those without any."""
    rows = await conn.execute(
        "SELECT count(*) FROM memory_vectors WHERE embedding IS NULL OR embedding_model <> %s::text", (model,)
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


def _metered(place: Pending, usage: Usage) -> Event:
    return Event(
        source=SOURCE,
        time=datetime.now(UTC),
        tenant=place.tenant,
        thread=place.thread,
        user=place.user,
        data=usage.metered("embedding"),
    )
