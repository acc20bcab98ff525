"""Fills the content-addressed cache of vectors: each missing vector is made once, within the spending limit."""

from collections.abc import Sequence

from pgvector import HalfVector

from turnlog.agent import metrics
from turnlog.agent.models.errors import ModelRefused
from turnlog.agent.models.protocol import Embedder, Usage, Vectors
from turnlog.agent.models.spending_limit import Ledger
from turnlog.agent.recall.embedding.pending import Pending
from turnlog.events.contracts import Event
from turnlog.projectors.engine.writer import Connection

SOURCE = "turnlog/embedder"
PROBE_TEXT = "turnlog"  # its vector shows whether a model is still the same
CHARS_PER_TOKEN = 3  # for estimates; the server reports the real number


async def fill_cache(
    conn: Connection, embedder: Embedder, batch: Sequence[Pending], budget: Ledger, spent: list[Usage]
) -> int:
    """Embeds the texts that are not in the cache; returns the dimensions of the model's vectors. spent: the usage of
    each call is appended to it. Raises ModelError, RetryLater."""
    texts = {pending.text_hash: pending.text for pending in batch}
    rows = await conn.execute(
        "SELECT text_hash FROM embedding_cache WHERE model = %s AND text_hash = ANY(%s)",
        (embedder.model, list(texts)),
    )
    known = {bytes(text_hash) for (text_hash,) in await rows.fetchall()}
    missing = {key: text for key, text in texts.items() if key not in known}
    metrics.cache_read("vectors", len(known), len(missing))
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
    """Returns the dimensions of the model's cached vectors; 0 if there are none."""
    rows = await conn.execute("SELECT vector_dims(embedding) FROM embedding_cache WHERE model = %s LIMIT 1", (model,))
    row = await rows.fetchone()
    return int(row[0]) if row else 0


async def _store(conn: Connection, model: str, hashes: list[bytes], vectors: Vectors) -> None:
    await conn.cursor().executemany(
        "INSERT INTO embedding_cache (model, text_hash, embedding) VALUES (%s, %s, %s::halfvec) ON CONFLICT DO NOTHING",
        [(model, key, HalfVector(vector)) for key, vector in zip(hashes, vectors, strict=True)],
    )


def metered(pending: Pending, usage: Usage) -> Event:
    data = usage.metered("embedding")
    return Event(source=SOURCE, tenant=pending.tenant, thread=pending.thread, user=pending.user or None, data=data)
