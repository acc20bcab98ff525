"""Reading chunks of a large scope for recall: a fair sample, likely candidates, what stands around them.

Every statement reads a bounded number of rows, whatever the scope's size.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from turnlog.projectors.chunk_lookup import FOUND, Found, Scope, found_chunk, vector_rows
from turnlog.projectors.writer import Connection

SAMPLE = 2_000  # chunks that tell what a scope is like
# One id in so many is counted to estimate a scope's size; in very large ones fewer, for so many ids tell enough.
PROBE_SHARE, PROBED = 512, 128
NEIGHBOURS = 3
WIDER = 1.5  # the search is so much wider than what is wanted: a second look costs more than a wider first one
MOST_VISITED = 2_000  # vectors that are looked at for a scope that has few of a table's chunks
_ID_BITS = 32

_COLUMNS = """v.thread_id, v.seq, v.piece, v.id, v.speaker, v.chunk, v.terms, v.created_at,
  CASE WHEN v.embedding_model = %(model)s THEN halfvec_send(v.embedding) END AS vector"""

Key = tuple[str, int, int, str]  # (thread, seq, piece, id): the order of a conversation


@dataclass(frozen=True, slots=True)
class Probe:
    """chunks: in the scope, estimated from one id in `one_in`. embedded: the share with a vector of the model."""

    chunks: int
    embedded: float
    one_in: int

    @property
    def enough(self) -> int:
        """Of how many ids one is enough for a scope of this size."""
        return max(PROBE_SHARE, self.chunks // PROBED)


@dataclass(frozen=True, slots=True)
class Part:
    """Chunks in parallel columns, sorted by key. vectors: NaN where there is none. terms: only for ranking."""

    keys: list[Key]
    speakers: list[str]
    texts: list[str]
    terms: list[list[str]]
    times: list[datetime]
    vectors: NDArray[np.float32] | None

    def places(self, hits: Sequence[Key]) -> list[int]:
        """Row numbers that are right within the neighbourhood of a hit; across, they are too far apart to matter."""
        linked = set[int]()
        for hit in hits:
            at = bisect_left(self.keys, hit)
            linked.update(range(max(at - NEIGHBOURS, 0), at + NEIGHBOURS))
        places, place = [], 0
        for at in range(len(self.keys)):
            place += 1 if at == 0 or at - 1 in linked else 2 * NEIGHBOURS
            places.append(place)
        return places


async def probe(conn: Connection, scope: Scope, model: str | None, one_in: int = PROBE_SHARE) -> Probe:
    """By the chunks whose id, a hash, begins low."""
    rows = await conn.execute(
        "SELECT count(*), count(*) FILTER (WHERE embedding_model = %(model)s) "
        f"FROM memory_vectors WHERE {scope.where} AND id < %(below)s".encode(),
        {**scope.params, "model": model, "below": _share(1 / one_in)},
    )
    found = await rows.fetchone()
    assert found is not None
    return Probe(found[0] * one_in, found[1] / max(found[0], 1), one_in)


async def sample(conn: Connection, scope: Scope, model: str | None, share: float) -> Part:
    """A share of the scope's chunks, chosen by their ids: the same ones every time."""
    rows = await conn.execute(
        f"SELECT {_COLUMNS} FROM memory_vectors v WHERE {scope.of('v')} AND v.id < %(below)s".encode(),
        {**scope.params, "model": model, "below": _share(share)},
        binary=True,
    )
    return _part(await rows.fetchall())


def _share(of_all: float) -> str:
    """Ids are 32 hexadecimal digits: this share of them is less."""
    return "g" if of_all >= 1 else f"{int(of_all * 2**_ID_BITS):08x}"


async def by_terms(
    conn: Connection, scope: Scope, groups: Sequence[tuple[Sequence[str], int]]
) -> list[tuple[Key, list[str]]]:
    """Chunks with all terms of any group, at most so many a group, with their terms."""
    if not groups:
        return []
    select = f"SELECT thread_id, seq, piece, id, terms FROM memory_vectors WHERE {scope.where} AND terms @> "
    query = " UNION ALL ".join(f"({select} %(t{n})s::text[] LIMIT {most:d})" for n, (_, most) in enumerate(groups))
    values = {f"t{n}": list(group) for n, (group, _) in enumerate(groups)}
    rows = await conn.execute(query.encode(), {**scope.params, **values}, binary=True)
    return [((thread, seq, piece, chunk_id), terms) for thread, seq, piece, chunk_id, terms in await rows.fetchall()]


async def by_vector(conn: Connection, scope: Scope, toward: NDArray[np.float32], model: str, most: int) -> list[Key]:
    """The chunks whose vectors point most toward a direction, nearly all of them right (HNSW)."""
    size = len(toward)
    async with conn.pipeline(), conn.transaction():
        await conn.execute(
            "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', %s, true), "
            "set_config('hnsw.max_scan_tuples', %s, true)",
            (str(min(round(WIDER * most), 1_000)), str(MOST_VISITED)),
        )
        rows = await conn.execute(
            f"SELECT thread_id, seq, piece, id FROM memory_vectors WHERE {scope.where} AND embedding_model = %(model)s "
            f"ORDER BY (embedding::halfvec({size:d})) <=> %(vector)s::halfvec({size:d}) LIMIT {most:d}".encode(),
            {**scope.params, "model": model, "vector": HalfVector(toward).to_text()},
        )
    return [(thread, seq, piece, chunk_id) for thread, seq, piece, chunk_id in await rows.fetchall()]


def _near(scope: Scope, comparison: str, order: str, most: int) -> str:
    """In the order of the index memory_vectors_place: no more than these rows are read."""
    return f"""(SELECT {_COLUMNS} FROM memory_vectors v WHERE v.tenant = %(tenant)s AND v.thread_id = h.thread_id
      AND (v.seq, v.piece, v.id) {comparison} (h.seq, h.piece, h.id) AND {scope.of("v")}
      ORDER BY v.seq {order}, v.piece {order}, v.id {order} LIMIT {most})"""


async def around(conn: Connection, scope: Scope, hits: Sequence[Key], model: str | None) -> Part:
    """The chunks of hits with those just before and after them, by an index in the order of conversations."""
    if not hits:
        return _part([])
    threads, seqs, pieces, ids = (list(column) for column in zip(*hits, strict=True))
    before, after = _near(scope, "<", "DESC", NEIGHBOURS), _near(scope, ">=", "ASC", NEIGHBOURS + 1)
    rows = await conn.execute(
        f"""SELECT near.* FROM unnest(%(threads)s::text[], %(seqs)s::bigint[], %(pieces)s::int[], %(ids)s::text[])
          h (thread_id, seq, piece, id) CROSS JOIN LATERAL ({before} UNION ALL {after}) near""".encode(),
        {**scope.params, "model": model, "threads": threads, "seqs": seqs, "pieces": pieces, "ids": ids},
        binary=True,
    )
    return _part(await rows.fetchall())


def _part(rows: Sequence[tuple[Any, ...]]) -> Part:
    found = sorted({row[:4]: row for row in rows}.values(), key=lambda row: row[:4])
    return Part(
        keys=[row[:4] for row in found],
        speakers=[row[4] for row in found],
        texts=[row[5] for row in found],
        terms=[row[6] for row in found],
        times=[row[7] for row in found],
        vectors=vector_rows([row[8] for row in found]),
    )


async def found_at(conn: Connection, scope: Scope, keys: Sequence[Key]) -> list[Found]:
    """The chunks of keys, whole, in their order."""
    rows = await conn.execute(
        f"SELECT {FOUND} FROM unnest(%(threads)s::text[], %(ids)s::text[]) WITH ORDINALITY k (thread_id, id, place) "
        "JOIN memory_vectors v ON v.tenant = %(tenant)s AND v.thread_id = k.thread_id AND v.id = k.id "
        "ORDER BY k.place".encode(),
        {**scope.params, "threads": [key[0] for key in keys], "ids": [key[3] for key in keys]},
        binary=True,
    )
    return [found_chunk(row, scope) for row in await rows.fetchall()]
