"""Memories that have just been embedded, compared with the nearest ones that were before and with each other."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import numpy as np

from turnlog.agent.memories.alike import settled_alike
from turnlog.agent.memories.conflicts import ALIKE
from turnlog.agent.memories.known import Known
from turnlog.agent.memories.similarity import least_cosine, similarity
from turnlog.agent.memories.writing import Rows
from turnlog.events.memory_contracts import MemoriesRevised
from turnlog.projectors.memory_lookup import StoredMemory, memories_by_id
from turnlog.projectors.memory_neighbours import Vector, cached_vectors, nearest

Cosines = list[tuple[UUID, float]]


async def alike_ones(rows: Rows, ids: Sequence[UUID], model: str, at: datetime) -> list[MemoriesRevised]:
    """What their comparison leads to, in the order in which they came; later ones see what became of earlier ones."""
    place = (rows.place.tenant, rows.place.thread)
    vectors = await cached_vectors(rows.conn, *place, ids, model)
    batch = sorted((await memories_by_id(rows.conn, *place, vectors)).values(), key=lambda row: (row.seq, str(row.id)))
    known, near = Known(rows.place, batch, at), _among(batch, vectors)
    found: list[MemoriesRevised] = []
    for row in batch:
        if row.status == "valid":
            others = await nearest(rows.conn, *place, row.kind, vectors[row.id], model)
            known.rows |= {other.id: other for other, _ in others if other.id not in known.rows}
            cosines = [*near[row.id], *((other.id, cosine) for other, cosine in others)]
            if revised := settled_alike(known.rows[row.id], _similar(row, cosines, known, model)):
                known.apply([revised])
                found.append(revised)
    return found


def _similar(row: StoredMemory, cosines: Cosines, known: Known, model: str) -> list[tuple[StoredMemory, float]]:
    """Best first."""
    least = least_cosine(model, ALIKE)
    others = [(known.rows[id_], cosine) for id_, cosine in cosines if cosine >= least and id_ != row.id]
    found = [(other, similarity(model, cosine, row.content, other.content)) for other, cosine in others]
    return sorted(found, key=lambda one: (-one[1], str(one[0].id)))


def _among(batch: Sequence[StoredMemory], vectors: Mapping[UUID, Vector]) -> dict[UUID, Cosines]:
    """Cosines to those before it in the batch, which no index has yet."""
    if not batch:
        return {}
    matrix = np.stack([vectors[row.id] for row in batch])
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    cosines = matrix @ matrix.T
    return {row.id: [(batch[m].id, float(cosines[n, m])) for m in range(n)] for n, row in enumerate(batch)}
