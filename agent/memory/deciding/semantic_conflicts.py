"""Resolves near-duplicates of a memory once its vector is available.

Input: memories with new vectors, and the stored memories nearest to them. Output: events that close duplicates. Only
memories that make the same claim are resolved, so that no fact is lost. KEEP_BOTH keeps both memories. MERGE and
ASK_USER leave paraphrases to the compaction, because it is useless to merge "I like tea" with "I enjoy tea", or to ask
the user about them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import numpy as np

from turnlog.agent.memory.deciding.chains import (
    Wins,
    changes,
    closed,
    highest,
    lasts_as_long,
    latest,
    layout,
    links_of,
    oldest,
)
from turnlog.agent.memory.deciding.claims import same_claim
from turnlog.agent.memory.deciding.memory_state import MemoryState
from turnlog.agent.memory.deciding.similarity import least_cosine, similarity
from turnlog.agent.memory.deciding.writing import Rows
from turnlog.events.contracts import Interval, MemoriesRevised, Strategy
from turnlog.projectors.models.memories.lookup import StoredMemory, memories_by_id
from turnlog.projectors.models.memories.vectors import Vector, cached_vectors, nearest

NEAR_DUPLICATE_SIMILARITY = 0.90  # calibrated (similarity.py); above it two memories may make the same claim
WINS: Mapping[Strategy, Wins] = {"KEEP_LATEST": latest, "KEEP_HIGHEST": highest, "KEEP_OLDEST": oldest}


def resolve_near_duplicate(row: StoredMemory, similar: Sequence[tuple[StoredMemory, float]]) -> MemoriesRevised | None:
    """Returns the event that closes the memory or its near-duplicate; None when there is no near-duplicate.

    similar: other memories of the thread with their calibrated similarity, most similar first.
    """
    for other, value in similar:
        if value > NEAR_DUPLICATE_SIMILARITY and (intervals := duplicate_intervals(row, other)):
            return MemoriesRevised(intervals=intervals, similarity=round(value, 4))
    return None


def duplicate_intervals(row: StoredMemory, other: StoredMemory) -> tuple[Interval, ...]:
    """Returns the intervals that close one of two similar memories; () if they do not make the same claim, or if both
    stay."""
    return _keep_one(row, other) if _is_duplicate(row, other) else ()


def _is_duplicate(row: StoredMemory, other: StoredMemory) -> bool:
    """Returns whether two memories are duplicates. Dedupe keys decide without a comparison: different keys mean
    different claims, equal keys were resolved when the memories were recorded."""
    valid = row.status == other.status == "valid" and row.id != other.id and row.kind == other.kind
    return valid and None in (row.dedupe_key, other.dedupe_key) and same_claim(row.content, other.content)


def _keep_one(row: StoredMemory, other: StoredMemory) -> tuple[Interval, ...]:
    """Keeps the memory with a dedupe key, because a newer claim can end it; if neither has a key, the strategy of the
    later memory decides."""
    if row.dedupe_key is not None or other.dedupe_key is not None:
        kept, lost = (row, other) if row.dedupe_key is not None else (other, row)
        end = closed(lost.id, max(lost.valid_from, kept.valid_from), kept.id, "duplicate")
        return (end,) if lasts_as_long(kept.expires_at, lost.expires_at) else ()
    later = max(row, other, key=lambda memory: (memory.valid_from, memory.seq))
    if (wins := WINS.get(later.strategy)) is None:
        return ()
    changed = changes(layout(links_of([row, other]), wins), [row, other])
    ended = [
        interval for interval in changed if interval.valid_to is not None and interval.replaced_by in (row.id, other.id)
    ]
    expiry = {row.id: row.expires_at for row in (row, other)}
    if not all(
        lasts_as_long(expiry[interval.replaced_by], expiry[interval.memory_id])
        for interval in ended
        if interval.replaced_by
    ):
        return ()
    return tuple(
        interval if interval.valid_to is None else interval.model_copy(update={"reason": "duplicate"})
        for interval in changed
    )


Cosines = list[tuple[UUID, float]]


async def resolve_near_duplicates(rows: Rows, ids: Sequence[UUID], model: str, at: datetime) -> list[MemoriesRevised]:
    """Resolves near-duplicates of the memories in the order of the log; each comparison sees the results of the earlier
    ones."""
    place = (rows.place.tenant, rows.place.thread)
    vectors = await cached_vectors(rows.conn, *place, ids, model)
    batch = sorted((await memories_by_id(rows.conn, *place, vectors)).values(), key=lambda row: (row.seq, str(row.id)))
    known, near = MemoryState(rows.place, batch, at), _among(batch, vectors)
    revised_memories: list[MemoriesRevised] = []
    for row in batch:
        if row.status == "valid":
            others = await nearest(rows.conn, *place, [row.kind], vectors[row.id], model)
            known.rows |= {other.id: other for other, _ in others if other.id not in known.rows}
            cosines = [*near[row.id], *((other.id, cosine) for other, cosine in others)]
            if revised := resolve_near_duplicate(known.rows[row.id], _similar(row, cosines, known, model)):
                known.apply([revised])
                revised_memories.append(revised)
    return revised_memories


def _similar(row: StoredMemory, cosines: Cosines, known: MemoryState, model: str) -> list[tuple[StoredMemory, float]]:
    """Returns the other memories with their calibrated similarity, most similar first."""
    least = least_cosine(model, NEAR_DUPLICATE_SIMILARITY)
    others = [(known.rows[id_], cosine) for id_, cosine in cosines if cosine >= least and id_ != row.id]
    similar = [(other, similarity(model, cosine, row.content, other.content)) for other, cosine in others]
    return sorted(similar, key=lambda pair: (-pair[1], str(pair[0].id)))


def _among(batch: Sequence[StoredMemory], vectors: Mapping[UUID, Vector]) -> dict[UUID, Cosines]:
    """Returns, for each memory, its cosines with the earlier memories of the batch, which are not in the index yet."""
    if not batch:
        return {}
    matrix = np.stack([vectors[row.id] for row in batch])
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    cosines = matrix @ matrix.T
    return {row.id: [(batch[m].id, float(cosines[n, m])) for m in range(n)] for n, row in enumerate(batch)}
