"""Reads chunks of a large scope for recall: a sample, candidates by terms and by vector, and their neighbours.

Every statement reads a bounded number of rows, however large the scope is.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnlog.events.local_time import with_offset
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.candidate_search import VectorScan, decode_vectors, nearest_rows
from turnlog.projectors.models.chunks.lookup import FOUND, Found, Key, Scope, found_chunk

SAMPLE = 2_000  # chunks in a sample
# To estimate a scope's size, one id in PROBE_SHARE is counted; in very large scopes only about PROBED ids are counted.
PROBE_SHARE, PROBED = 512, 128
NEIGHBOURS = 3
WIDER = 1.5  # ef_search per wanted row, because a second scan would cost more than a wider first scan
MAX_VISITED = 2_000  # how many vectors to visit at most if few of the table's rows are in the scope
_ID_BITS = 32

_KEY = "v.thread_id, v.seq, v.piece, v.id"
_COLUMNS = f"""{_KEY}, v.speaker, v.chunk, v.terms, v.created_at, v.role, v.utc_offset,
  CASE WHEN v.embedding_model = %(model)s THEN halfvec_send(v.embedding) END AS vector"""
_COUNTS = "count(*), count(*) FILTER (WHERE v.embedding_model = %(model)s)"


@dataclass(frozen=True, slots=True)
class Probe:
    """An estimate of a scope. chunks: their number, estimated from one id in `one_in`. embedded: the share of chunks
    with a vector of the model."""

    chunks: int
    embedded: float
    one_in: int

    @property
    def enough(self) -> int:
        """Returns the largest `one_in` that is accurate enough for a scope of this size."""
        return max(PROBE_SHARE, self.chunks // PROBED)


@dataclass(frozen=True, slots=True)
class ChunkColumns:
    """Chunks in parallel columns, sorted by key. vectors: NaN for chunks without a vector. terms: used only for
    ranking."""

    keys: list[Key]
    speakers: list[str]
    texts: list[str]
    terms: list[list[str]]
    times: list[datetime]
    roles: list[str]
    vectors: NDArray[np.float32] | None

    def places(self, hits: Sequence[Key]) -> list[int]:
        """Returns a position for each chunk. The chunks around a hit have consecutive positions; there is a gap between
        two neighbours that were not read for the same hit."""
        linked = set[int]()
        for hit in hits:
            at = bisect_left(self.keys, hit)
            linked.update(range(max(at - NEIGHBOURS, 0), at + NEIGHBOURS))
        positions, position = [], 0
        for at in range(len(self.keys)):
            position += 1 if at == 0 or at - 1 in linked else 2 * NEIGHBOURS
            positions.append(position)
        return positions


async def probe(conn: Connection, scope: Scope, model: str | None, one_in: int = PROBE_SHARE) -> Probe:
    """Estimates the size of a scope by counting the chunks whose id, a hash, is below a bound."""
    rows = await conn.execute(
        f"{scope.searched.rows(_COUNTS)} AND v.id < %(below)s".encode(),
        {**scope.params, "model": model, "below": _share(1 / one_in)},
    )
    row = await rows.fetchone()
    assert row is not None
    return Probe(row[0] * one_in, row[1] / max(row[0], 1), one_in)


async def sample(conn: Connection, scope: Scope, model: str | None, share: float) -> ChunkColumns:
    """Returns a share of the scope's chunks, chosen by their ids: the same chunks every time."""
    rows = await conn.execute(
        f"{scope.searched.rows(_COLUMNS)} AND v.id < %(below)s".encode(),
        {**scope.params, "model": model, "below": _share(share)},
        binary=True,
    )
    return _columns(await rows.fetchall())


def _share(of_all: float) -> str:
    """Returns the bound below which this share of all ids lies; an id has 32 hexadecimal digits."""
    return "g" if of_all >= 1 else f"{int(of_all * 2**_ID_BITS):08x}"


async def by_terms(
    conn: Connection, scope: Scope, groups: Sequence[tuple[Sequence[str], int]]
) -> list[tuple[Key, list[str]]]:
    """Returns keys and terms of the chunks that contain all terms of a group. groups: (terms, maximum number of
    rows)."""
    if not groups:
        return []
    selects = (
        scope.searched.with_terms(f"{_KEY}, v.terms", f"%(t{n})s::text[]", most) for n, (_, most) in enumerate(groups)
    )
    query = " UNION ALL ".join(f"({select})" for select in selects)
    values = {f"t{n}": list(group) for n, (group, _) in enumerate(groups)}
    rows = await conn.execute(query.encode(), {**scope.params, **values}, binary=True)
    return [((thread, seq, piece, chunk_id), terms) for thread, seq, piece, chunk_id, terms in await rows.fetchall()]


async def by_vector(conn: Connection, scope: Scope, toward: NDArray[np.float32], model: str, most: int) -> list[Key]:
    """Returns keys of the chunks whose vectors are nearest to the direction `toward`; HNSW may miss a few."""
    scan = VectorScan("relaxed_order", min(round(WIDER * most), 1_000), MAX_VISITED)
    rows = await nearest_rows(conn, scope.searched, _KEY, toward, model, most, scan)
    return [(thread, seq, piece, chunk_id) for thread, seq, piece, chunk_id in rows]


def _near(scope: Scope, comparison: str, order: str, most: int) -> str:
    """Returns SQL that selects up to `most` rows before `h`, or from `h` on, in the order of the index
    memory_vectors_place."""
    return f"""(SELECT {_COLUMNS} FROM memory_vectors v WHERE v.tenant = %(tenant)s AND v.thread_id = h.thread_id
      AND (v.seq, v.piece, v.id) {comparison} (h.seq, h.piece, h.id) AND {scope.where}
      ORDER BY v.seq {order}, v.piece {order}, v.id {order} LIMIT {most})"""


async def around(conn: Connection, scope: Scope, hits: Sequence[Key], model: str | None) -> ChunkColumns:
    """Returns the chunks of the hits, with the NEIGHBOURS chunks just before and after each hit."""
    if not hits:
        return _columns([])
    threads, seqs, pieces, ids = (list(column) for column in zip(*hits, strict=True))
    before, after = _near(scope, "<", "DESC", NEIGHBOURS), _near(scope, ">=", "ASC", NEIGHBOURS + 1)
    rows = await conn.execute(
        f"""SELECT near.* FROM unnest(%(threads)s::text[], %(seqs)s::bigint[], %(pieces)s::int[], %(ids)s::text[])
          h (thread_id, seq, piece, id) CROSS JOIN LATERAL ({before} UNION ALL {after}) near""".encode(),
        {**scope.params, "model": model, "threads": threads, "seqs": seqs, "pieces": pieces, "ids": ids},
        binary=True,
    )
    return _columns(await rows.fetchall())


def _columns(rows: Sequence[tuple[Any, ...]]) -> ChunkColumns:
    unique = sorted({row[:4]: row for row in rows}.values(), key=lambda row: row[:4])
    return ChunkColumns(
        keys=[row[:4] for row in unique],
        speakers=[row[4] for row in unique],
        texts=[row[5] for row in unique],
        terms=[row[6] for row in unique],
        times=[with_offset(row[7], row[9]) for row in unique],
        roles=[row[8] for row in unique],
        vectors=decode_vectors([row[10] for row in unique]),
    )


async def found_at(conn: Connection, scope: Scope, keys: Sequence[Key]) -> list[Found]:
    """Returns the chunks with these keys, in the order of the keys, with every column that recall shows."""
    rows = await conn.execute(
        f"SELECT {FOUND} FROM unnest(%(threads)s::text[], %(ids)s::text[]) WITH ORDINALITY k (thread_id, id, place) "
        "JOIN memory_vectors v ON v.tenant = %(tenant)s AND v.thread_id = k.thread_id AND v.id = k.id "
        "ORDER BY k.place".encode(),
        {**scope.params, "threads": [key[0] for key in keys], "ids": [key[3] for key in keys]},
        binary=True,
    )
    return [found_chunk(row, scope) for row in await rows.fetchall()]
