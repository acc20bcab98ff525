"""Vectors of memories, and the memories nearest to a vector (M5)."""

from collections.abc import Iterable
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from turnlog.projectors.memory_lookup import FIELDS, StoredMemory, stored_memory
from turnlog.projectors.writer import Connection

Vector = NDArray[np.float32]
FETCHED = 20
_THREAD = "m.tenant = %(tenant)s AND m.thread_id = %(thread)s"
# A plan for any parameters would not know the model, and so would not use its index.
_ANN = (
    "SELECT set_config('hnsw.iterative_scan', 'strict_order', true), "
    "set_config('plan_cache_mode', 'force_custom_plan', true)"
)


async def cached_vectors(
    conn: Connection, tenant: str, thread: str, ids: Iterable[UUID], model: str
) -> dict[UUID, Vector]:
    """Vectors of memories from the embedding cache, whether their rows have them already or not."""
    rows = await conn.execute(
        f"""
        SELECT m.id, c.embedding FROM memories m JOIN embedding_cache c
          ON c.model = %(model)s AND c.text_hash = sha256(convert_to(m.content, 'UTF8'))
        WHERE {_THREAD} AND m.id = ANY(%(ids)s::uuid[])""".encode(),
        {"tenant": tenant, "thread": thread, "ids": list(ids), "model": model},
    )
    return {id_: HalfVector.from_text(found).to_numpy().astype(np.float32) for id_, found in await rows.fetchall()}


async def nearest(
    conn: Connection,
    tenant: str,
    thread: str,
    kind: str,
    vector: Vector,
    model: str,
    limit: int = FETCHED,
) -> list[tuple[StoredMemory, float]]:
    """Valid memories of a kind with their cosine to a vector, nearest first, by the model's ANN index."""
    distance = f"m.embedding::halfvec({len(vector):d}) <=> %(vector)s::halfvec({len(vector):d})"
    async with conn.transaction():
        await conn.execute(_ANN.encode())
        rows = await conn.execute(
            f"SELECT {FIELDS}, 1 - ({distance}) FROM memories m WHERE {_THREAD} AND m.embedding_model = %(model)s "
            f"AND m.kind = %(kind)s AND m.status = 'valid' ORDER BY {distance} LIMIT %(limit)s".encode(),
            {
                **{"tenant": tenant, "thread": thread, "model": model, "kind": kind},
                **{"vector": HalfVector(vector).to_text(), "limit": limit},
            },
        )
        return [(stored_memory(row), float(row[-1])) for row in await rows.fetchall()]
