"""Reading chunks for recall: a whole scope when it is small, the likely part of it when it is large."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from turnlog.projectors.forks import parents
from turnlog.projectors.writer import Connection

WHOLE_SCOPE_UP_TO = 8_000
CANDIDATES = 300
NEIGHBOURS = 3


@dataclass(frozen=True, slots=True)
class Scope:
    """Where to look: one thread, or all threads of a user, of one tenant.

    parents: of a fork, (thread, last sequence that belongs to the fork); with_parents fills it in.
    """

    tenant: str
    thread: str | None = None
    user: str | None = None
    parents: tuple[tuple[str, int], ...] = ()

    @property
    def where(self) -> str:
        if self.thread is None:
            return "tenant = %(tenant)s AND user_id = %(user)s"
        if not self.parents:
            return "tenant = %(tenant)s AND thread_id = %(thread)s"
        through = "(%(through)s::bigint[])[array_position(%(lineage)s::text[], thread_id)]"
        return f"tenant = %(tenant)s AND thread_id = ANY(%(lineage)s::text[]) AND seq <= {through}"

    @property
    def params(self) -> dict[str, Any]:
        lineage = (*self.parents, (self.thread, 2**62))
        return {
            "tenant": self.tenant,
            "thread": self.thread,
            "user": self.user,
            "lineage": [thread for thread, _ in lineage],
            "through": [through for _, through in lineage],
        }


async def with_parents(conn: Connection, scope: Scope) -> Scope:
    """The scope of a fork takes in what its parents had when it began."""
    if scope.thread is None:
        return scope
    return replace(scope, parents=await parents(conn, scope.tenant, scope.thread))


@dataclass(frozen=True, slots=True)
class Found:
    """A chunk as recall shows it. seqs, event_ids, source_ids: the turns that say it, the first first."""

    thread: str
    id: str
    seqs: list[int]
    event_ids: list[UUID]
    source_ids: list[str | None]
    speaker: str
    text: str
    terms: list[str]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Columns:
    """Chunks sorted by (thread, seq, piece). positions: row numbers in the thread; size: chunks in the scope."""

    chunks: list[Found]
    vectors: NDArray[np.float32] | None
    positions: list[int]
    size: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """Changes whenever the chunks or vectors of a scope do."""

    chunks: int
    embedded: int
    last_seq: int
    turns: int


async def scope_stamp(conn: Connection, scope: Scope, model: str | None) -> Stamp:
    rows = await conn.execute(
        "SELECT count(*), count(*) FILTER (WHERE embedding_model = %(model)s), coalesce(max(seq), 0), "
        f"coalesce(sum(cardinality(seqs)), 0) FROM memory_vectors WHERE {scope.where}",
        {**scope.params, "model": model},
    )
    found = await rows.fetchone()
    assert found is not None
    return Stamp(*(int(n) for n in found))


async def whole_scope(conn: Connection, scope: Scope, model: str | None) -> Columns:
    return await _load(conn, scope, model, None)


async def likely_part(
    conn: Connection, scope: Scope, terms: Sequence[str], vector: NDArray[np.float32] | None, model: str | None
) -> Columns:
    """The best candidates by words and by vector, each with its neighbours in the conversation."""
    hits = await _by_terms(conn, scope, terms)
    if vector is not None and model is not None:
        hits |= await _by_vector(conn, scope, vector, model)
    return await _load(conn, scope, model, sorted(hits))


async def _by_terms(conn: Connection, scope: Scope, terms: Sequence[str]) -> set[tuple[str, int]]:
    """Rarer terms weigh more; the count of a term in the scope comes from the same index."""
    if not terms:
        return set()
    rows = await conn.execute(
        f"""
        WITH hits AS MATERIALIZED (
          SELECT thread_id, seq, ARRAY(SELECT DISTINCT t FROM unnest(terms) t WHERE t = ANY(%(terms)s)) AS matched,
            cardinality(terms) AS length
          FROM memory_vectors WHERE {scope.where} AND terms && %(terms)s::text[]),
        weights AS MATERIALIZED (SELECT t AS term, ln(1 + (SELECT count(*) FROM hits) / count(*)::float) AS weight
          FROM hits, unnest(matched) t GROUP BY t)
        SELECT thread_id, seq FROM hits, LATERAL (
          SELECT sum(weight) AS score FROM weights WHERE term = ANY(matched)) s
        ORDER BY score / (1 + length / 50.0) DESC, seq LIMIT {CANDIDATES}""".encode(),
        {**scope.params, "terms": list(terms)},
    )
    return {(thread, seq) for thread, seq in await rows.fetchall()}


async def _by_vector(conn: Connection, scope: Scope, vector: NDArray[np.float32], model: str) -> set[tuple[str, int]]:
    size = len(vector)
    async with conn.transaction():
        await conn.execute("SET LOCAL hnsw.iterative_scan = strict_order")
        rows = await conn.execute(
            f"SELECT thread_id, seq FROM memory_vectors WHERE {scope.where} AND embedding_model = %(model)s "
            f"ORDER BY (embedding::halfvec({size:d})) <=> %(vector)s::halfvec({size:d}) "
            f"LIMIT {CANDIDATES // 2}".encode(),
            {**scope.params, "model": model, "vector": HalfVector(vector).to_text()},
        )
        return {(thread, seq) for thread, seq in await rows.fetchall()}


_NEAR_HITS = f"""
bool_or((thread_id, seq) IN (SELECT * FROM unnest(%(threads)s::text[], %(seqs)s::bigint[])))
OVER (PARTITION BY thread_id ORDER BY seq, piece, id ROWS BETWEEN {NEIGHBOURS} PRECEDING AND {NEIGHBOURS} FOLLOWING)"""


async def _load(conn: Connection, scope: Scope, model: str | None, hits: Sequence[tuple[str, int]] | None) -> Columns:
    """hits: (thread, seq) of the chunks to load with their neighbours; None loads the scope."""
    rows = await conn.execute(
        f"""
        WITH numbered AS (
          SELECT thread_id, id, count(*) OVER () AS size,
            row_number() OVER (PARTITION BY thread_id ORDER BY seq, piece, id) AS position,
            {"true" if hits is None else _NEAR_HITS} AS wanted
          FROM memory_vectors WHERE {scope.where})
        SELECT n.thread_id, n.id, v.seqs, v.event_ids, v.source_ids, v.speaker, v.chunk, v.terms, v.created_at,
          n.position, n.size, CASE WHEN v.embedding_model = %(model)s THEN halfvec_send(v.embedding) END
        FROM numbered n JOIN memory_vectors v ON v.tenant = %(tenant)s AND v.thread_id = n.thread_id AND v.id = n.id
        WHERE n.wanted""".encode(),
        {
            **scope.params,
            "model": model,
            "threads": [thread for thread, _ in hits or ()],
            "seqs": [seq for _, seq in hits or ()],
        },
        binary=True,
    )
    found = sorted(await rows.fetchall(), key=lambda row: (row[0], row[9]))
    shared = dict(scope.parents)
    return Columns(
        [_within(Found(*row[:9]), shared.get(row[0])) for row in found],
        _matrix([row[11] for row in found]),
        [row[9] for row in found],
        found[0][10] if found else 0,
    )


def _within(chunk: Found, through: int | None) -> Found:
    """The chunk as it was told up to a sequence: a parent may have said it again since."""
    if through is None or chunk.seqs[-1] <= through:
        return chunk
    told = bisect_right(chunk.seqs, through)
    return replace(chunk, seqs=chunk.seqs[:told], event_ids=chunk.event_ids[:told], source_ids=chunk.source_ids[:told])


def _matrix(sent: Sequence[bytes | None]) -> NDArray[np.float32] | None:
    """(n, dimensions), NaN where a chunk has no vector yet; None when none has one.

    sent: pgvector's binary form of a halfvec: two int16 (dimensions, unused), then float16, all big-endian.
    """
    first = next((vector for vector in sent if vector is not None), None)
    if first is None:
        return None
    unknown = first[:4] + b"\x7e\x00" * (len(first) // 2 - 2)
    rows = np.frombuffer(b"".join(vector or unknown for vector in sent), dtype=">f2").reshape(len(sent), -1)
    return rows[:, 2:].astype(np.float32)
