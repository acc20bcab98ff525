"""Reads memories with their vectors: the nearest memories of a kind, and the memories that a compaction compares."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from turnlog.events.contracts import Origin
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.candidate_search import SearchScope, VectorScan, decode_vectors, nearest_rows
from turnlog.projectors.models.memories.lookup import FIELDS, IN_THREAD, StoredMemory, stored_memory

Vector = NDArray[np.float32]
FETCHED = 20


async def cached_vectors(
    conn: Connection, tenant: str, thread: str, ids: Iterable[UUID], model: str
) -> dict[UUID, Vector]:
    """Returns the vectors of memories from the embedding cache, even if the rows do not have them yet."""
    rows = await conn.execute(
        f"""
        SELECT m.id, c.embedding FROM memories m JOIN embedding_cache c
          ON c.model = %(model)s AND c.text_hash = sha256(convert_to(m.content, 'UTF8'))
        WHERE {IN_THREAD} AND m.id = ANY(%(ids)s::uuid[])""".encode(),
        {"tenant": tenant, "thread": thread, "ids": list(ids), "model": model},
    )
    return {id_: HalfVector.from_text(vector).to_numpy().astype(np.float32) for id_, vector in await rows.fetchall()}


async def nearest(
    conn: Connection,
    tenant: str,
    thread: str,
    kinds: Sequence[str],
    vector: Vector,
    model: str,
    limit: int = FETCHED,
) -> list[tuple[StoredMemory, float]]:
    """Returns valid memories of these kinds with their cosine similarity to a vector, nearest first, by the model's
    HNSW index."""
    where = f"{IN_THREAD} AND m.kind = ANY(%(kinds)s) AND m.status = 'valid'"
    scope = SearchScope("memories", "m", where, {"tenant": tenant, "thread": thread, "kinds": list(kinds)})
    columns = f"{FIELDS}, 1 - ({scope.distance(len(vector))})"
    rows = await nearest_rows(conn, scope, columns, vector, model, limit, VectorScan())
    return [(stored_memory(row), float(row[-1])) for row in rows]


BATCH = 2_000


@dataclass(frozen=True, slots=True)
class VectorsOf:
    """The number of valid memories of a thread that have a vector of a model."""

    tenant: str
    thread: str
    user: str
    model: str
    count: int
    dimensions: int


@dataclass(frozen=True, slots=True)
class Embedded:
    """A valid memory with its vector. importance: the value at importance_at. vector: float16 of shape
    (dimensions,)."""

    id: UUID
    kind: str
    content: str
    dedupe_key: str | None
    importance: float
    importance_at: datetime
    confidence: float
    access_count: int
    last_accessed_at: datetime | None
    confirmed_at: datetime
    expires_at: datetime | None
    valid_from: datetime
    seq: int
    origin: Origin
    entities: list[str]
    has_evidence: bool
    vector: NDArray[np.float16]


async def users_with_vectors(conn: Connection) -> list[VectorsOf]:
    """Returns the threads of all tenants, including trial derivations, with two or more vectors of one model."""
    rows = await conn.execute(
        "SELECT tenant, thread_id, min(user_id), embedding_model, count(*), min(vector_dims(embedding)) FROM memories "
        "WHERE status = 'valid' AND embedding IS NOT NULL GROUP BY tenant, thread_id, embedding_model "
        "HAVING count(*) > 1 ORDER BY tenant, thread_id, embedding_model"
    )
    return [VectorsOf(*row) for row in await rows.fetchall()]


async def embedded_memories(conn: Connection, of: VectorsOf) -> AsyncIterator[Sequence[Embedded]]:
    """Yields batches of up to BATCH memories, ordered by kind."""
    async with conn.transaction(), conn.cursor("memory_compacting", binary=True) as cursor:
        await cursor.execute(
            "SELECT id, kind, content, dedupe_key, importance, importance_at, confidence, access_count, "
            "last_accessed_at, confirmed_at, expires_at, valid_from, seq, origin, entities, sources <> '[]', "
            "halfvec_send(embedding) FROM memories "
            "WHERE tenant = %s AND thread_id = %s AND status = 'valid' AND embedding_model = %s "
            "AND vector_dims(embedding) = %s ORDER BY kind, id",
            (of.tenant, of.thread, of.model, of.dimensions),
        )
        while rows := await cursor.fetchmany(BATCH):
            vectors = decode_vectors([row[-1] for row in rows])
            assert vectors is not None
            halves = vectors.astype(np.float16)
            yield [Embedded(*(*row[:-1], half)) for row, half in zip(rows, halves, strict=True)]


@dataclass(frozen=True, slots=True)
class Compaction:
    """A row of memory_compactions. kept: the duplicate that stayed valid, if duplicates were merged. made: the new
    memory, if one was made."""

    event_id: UUID
    method: str
    members: list[UUID]
    kept: UUID | None
    made: UUID | None
    similarity: float | None
    compacted_at: datetime
    undone: bool


async def compactions(conn: Connection, tenant: str, thread: str, event_id: UUID | None = None) -> list[Compaction]:
    """Returns compactions, newest first. event_id: returns only this compaction."""
    rows = await conn.execute(
        "SELECT event_id, method, members, kept, made, similarity, compacted_at, undone_at IS NOT NULL "
        "FROM memory_compactions WHERE tenant = %(tenant)s AND thread_id = %(thread)s "
        "AND (%(id)s::uuid IS NULL OR event_id = %(id)s) ORDER BY compacted_at DESC, event_id",
        {"tenant": tenant, "thread": thread, "id": event_id},
    )
    return [Compaction(*row) for row in await rows.fetchall()]


async def separated_memories(conn: Connection, tenant: str, thread: str) -> list[frozenset[UUID]]:
    """Returns the members of each compaction that was undone or that made a new memory. Two members of one set must not
    be merged again: if both are valid after a compaction that made a new memory, somebody has restored them.
    """
    rows = await conn.execute(
        "SELECT members FROM memory_compactions WHERE tenant = %s AND thread_id = %s "
        "AND (undone_at IS NOT NULL OR made IS NOT NULL)",
        (tenant, thread),
    )
    return [frozenset(members) for (members,) in await rows.fetchall()]
