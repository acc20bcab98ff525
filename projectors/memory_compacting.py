"""Reading what a compaction compares: a user's valid memories with their vectors, row by row."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from turnlog.events.memory_contracts import Origin
from turnlog.projectors.writer import Connection

AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class VectorsOf:
    """The valid memories of one thread that have a vector of one model."""

    tenant: str
    thread: str
    user: str
    model: str
    count: int
    dimensions: int


@dataclass(frozen=True, slots=True)
class Embedded:
    """A valid memory. importance: as it was at importance_at. vector: float16 (dimensions,)."""

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
    """Of all tenants, threads in which there is anything to compare; shadows too."""
    rows = await conn.execute(
        "SELECT tenant, thread_id, min(user_id), embedding_model, count(*), min(vector_dims(embedding)) FROM memories "
        "WHERE status = 'valid' AND embedding IS NOT NULL GROUP BY tenant, thread_id, embedding_model "
        "HAVING count(*) > 1 ORDER BY tenant, thread_id, embedding_model"
    )
    return [VectorsOf(*row) for row in await rows.fetchall()]


async def embedded_memories(conn: Connection, of: VectorsOf) -> AsyncIterator[Sequence[Embedded]]:
    """AT_ONCE at a time, in order of kind."""
    async with conn.transaction(), conn.cursor("memory_compacting", binary=True) as cursor:
        await cursor.execute(
            "SELECT id, kind, content, dedupe_key, importance, importance_at, confidence, access_count, "
            "last_accessed_at, confirmed_at, expires_at, valid_from, seq, origin, entities, sources <> '[]', "
            "halfvec_send(embedding) FROM memories "
            "WHERE tenant = %s AND thread_id = %s AND status = 'valid' AND embedding_model = %s "
            "AND vector_dims(embedding) = %s ORDER BY kind, id",
            (of.tenant, of.thread, of.model, of.dimensions),
        )
        while rows := await cursor.fetchmany(AT_ONCE):
            yield [_embedded(list(row)) for row in rows]


def _embedded(values: list[Any]) -> Embedded:
    values[-1] = _vector(values[-1])
    return Embedded(*values)


def _vector(sent: bytes) -> NDArray[np.float16]:
    """pgvector's binary form: two int16 (dimensions, unused), then float16, all big-endian."""
    return np.frombuffer(sent, dtype=">f2", offset=4).astype(np.float16)


@dataclass(frozen=True, slots=True)
class Compaction:
    """What was made one. kept: the member that stayed, or made: the memory that was made of all of them."""

    event_id: UUID
    method: str
    members: list[UUID]
    kept: UUID | None
    made: UUID | None
    similarity: float | None
    compacted_at: datetime
    undone: bool


async def compactions(conn: Connection, tenant: str, thread: str, event_id: UUID | None = None) -> list[Compaction]:
    """The newest first; or only the one of that id."""
    rows = await conn.execute(
        "SELECT event_id, method, members, kept, made, similarity, compacted_at, undone_at IS NOT NULL "
        "FROM memory_compactions WHERE tenant = %(tenant)s AND thread_id = %(thread)s "
        "AND (%(id)s::uuid IS NULL OR event_id = %(id)s) ORDER BY compacted_at DESC, event_id",
        {"tenant": tenant, "thread": thread, "id": event_id},
    )
    return [Compaction(*row) for row in await rows.fetchall()]


async def kept_apart(conn: Connection, tenant: str, thread: str) -> list[frozenset[UUID]]:
    """Members that are not made one again, by compaction: of those that were taken back, and of those that made a new
    memory, for when two of their members hold again somebody wanted that."""
    rows = await conn.execute(
        "SELECT members FROM memory_compactions WHERE tenant = %s AND thread_id = %s "
        "AND (undone_at IS NOT NULL OR made IS NOT NULL)",
        (tenant, thread),
    )
    return [frozenset(members) for (members,) in await rows.fetchall()]
