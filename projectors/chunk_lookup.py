"""Reading chunks for recall: where to look, and small scopes whole (large ones: chunk_candidates.py)."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from turnlog.projectors.forks import parents
from turnlog.projectors.writer import Connection

WHOLE_SCOPE_UP_TO = 2_000
FOUND = "v.thread_id, v.id, v.seqs, v.event_ids, v.source_ids, v.speaker, v.chunk, v.terms, v.created_at"


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
        return self.of("memory_vectors")

    def of(self, table: str) -> str:
        """The condition on the rows of memory_vectors under a name."""
        if self.thread is None:
            return f"{table}.tenant = %(tenant)s AND {table}.user_id = %(user)s"
        if not self.parents:
            return f"{table}.tenant = %(tenant)s AND {table}.thread_id = %(thread)s"
        through = f"(%(through)s::bigint[])[array_position(%(lineage)s::text[], {table}.thread_id)]"
        return (
            f"{table}.tenant = %(tenant)s AND {table}.thread_id = ANY(%(lineage)s::text[]) AND {table}.seq <= {through}"
        )

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
    """Chunks sorted by (thread, seq, piece)."""

    chunks: list[Found]
    vectors: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Stamp:
    """Changes whenever the chunks or vectors of a scope do, unless it is large: then only `large` is sure."""

    chunks: int
    embedded: int
    last_seq: int
    turns: int

    @property
    def large(self) -> bool:
        return self.chunks > WHOLE_SCOPE_UP_TO


async def scope_stamp(conn: Connection, scope: Scope, model: str | None) -> Stamp:
    """Looks at one chunk more than a scope may have to be loaded whole, and at no more."""
    rows = await conn.execute(
        "SELECT count(*), count(*) FILTER (WHERE embedding_model = %(model)s), coalesce(max(seq), 0), "
        "coalesce(sum(cardinality(seqs)), 0) FROM (SELECT embedding_model, seq, seqs FROM memory_vectors "
        f"WHERE {scope.where} LIMIT {WHOLE_SCOPE_UP_TO + 1}) some_of_it".encode(),
        {**scope.params, "model": model},
    )
    found = await rows.fetchone()
    assert found is not None
    return Stamp(*(int(n) for n in found))


async def whole_scope(conn: Connection, scope: Scope, model: str | None) -> Columns:
    rows = await conn.execute(
        f"SELECT {FOUND}, CASE WHEN v.embedding_model = %(model)s THEN halfvec_send(v.embedding) END, v.seq, v.piece "
        f"FROM memory_vectors v WHERE {scope.of('v')}".encode(),
        {**scope.params, "model": model},
        binary=True,
    )
    found = sorted(await rows.fetchall(), key=lambda row: (row[0], row[10], row[11], row[1]))
    return Columns([found_chunk(row, scope) for row in found], vector_rows([row[9] for row in found]))


def found_chunk(row: Sequence[Any], scope: Scope) -> Found:
    """A row of the columns FOUND as the scope sees it."""
    return _within(Found(*row[:9]), dict(scope.parents).get(row[0]))


def _within(chunk: Found, through: int | None) -> Found:
    """The chunk as it was told up to a sequence: a parent may have said it again since."""
    if through is None or chunk.seqs[-1] <= through:
        return chunk
    told = bisect_right(chunk.seqs, through)
    return replace(chunk, seqs=chunk.seqs[:told], event_ids=chunk.event_ids[:told], source_ids=chunk.source_ids[:told])


def vector_rows(sent: Sequence[bytes | None]) -> NDArray[np.float32] | None:
    """(n, dimensions), NaN where a chunk has no vector yet; None when none has one.

    sent: pgvector's binary form of a halfvec: two int16 (dimensions, unused), then float16, all big-endian.
    """
    first = next((vector for vector in sent if vector is not None), None)
    if first is None:
        return None
    unknown = first[:4] + b"\x7e\x00" * (len(first) // 2 - 2)
    rows = np.frombuffer(b"".join(vector or unknown for vector in sent), dtype=">f2").reshape(len(sent), -1)
    return rows[:, 2:].astype(np.float32)
