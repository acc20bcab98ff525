"""Finds candidates: a bounded number of rows of a scope that may answer a query, by an index.

Used by all read models with the columns terms (GIN), embedding and embedding_model (one HNSW index per model): chunks
and memories. Input: a `SearchScope` (table, condition, parameters). Output: SQL that a caller runs alone or as part of
a larger statement; `nearest_rows` runs a search by vector. The caller ranks the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from turnlog.projectors.engine.writer import Connection


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The rows to search. alias: the alias of the table. where: a condition on the alias. params: the condition's
    parameters."""

    table: str
    alias: str
    where: str
    params: Mapping[str, Any]

    def rows(self, columns: str) -> str:
        """Returns SQL that selects all rows of the scope; the caller may add conditions with AND."""
        return f"SELECT {columns} FROM {self.table} {self.alias} WHERE {self.where}"

    def with_terms(self, columns: str, terms: str, limit: int) -> str:
        """Returns SQL that selects up to `limit` rows that contain all of the terms. terms: an SQL expression of type
        text[]."""
        return f"{self.rows(columns)} AND {self.alias}.terms @> {terms} LIMIT {limit:d}"

    def nearest(self, columns: str, dimensions: int, limit: int) -> str:
        """Returns SQL that selects the `limit` rows nearest to %(vector)s, nearest first, among the rows with a vector
        of %(model)s."""
        return f"{self.rows(columns)} AND {self.is_embedded} ORDER BY {self.distance(dimensions)} LIMIT {limit:d}"

    @property
    def is_embedded(self) -> str:
        return f"{self.alias}.embedding_model = %(model)s"

    def distance(self, dimensions: int) -> str:
        """Returns an SQL expression for the cosine distance to %(vector)s, in the form that the HNSW indexes use."""
        return f"({self.alias}.embedding::halfvec({dimensions:d})) <=> %(vector)s::halfvec({dimensions:d})"


@dataclass(frozen=True, slots=True)
class VectorScan:
    """Settings for reading an HNSW index; None keeps the server's value.

    order: relaxed_order is faster and may return a row out of order. ef_search: the number of candidates kept in
    memory. max_tuples: how many rows to visit at most when few rows pass the filter.
    """

    order: Literal["strict_order", "relaxed_order"] = "strict_order"
    ef_search: int | None = None
    max_tuples: int | None = None


async def use_vector_scan(conn: Connection, scan: VectorScan) -> None:
    """Applies scan settings to the rest of the transaction. It also turns generic plans off, because a generic plan
    does not know the model and cannot use the model's index."""
    settings = {
        "plan_cache_mode": "force_custom_plan",
        "hnsw.iterative_scan": scan.order,
        "hnsw.ef_search": scan.ef_search,
        "hnsw.max_scan_tuples": scan.max_tuples,
    }
    values = {name: str(value) for name, value in settings.items() if value is not None}
    calls = ", ".join("set_config(%s, %s, true)" for _ in values)
    await conn.execute(f"SELECT {calls}".encode(), [part for pair in values.items() for part in pair])


async def nearest_rows(
    conn: Connection,
    scope: SearchScope,
    columns: str,
    vector: NDArray[np.float32],
    model: str,
    limit: int,
    scan: VectorScan,
) -> list[tuple[Any, ...]]:
    """Returns the rows whose vectors of `model` are nearest to `vector`; some may be missed if few rows pass the
    filter."""
    async with conn.pipeline(), conn.transaction():
        await use_vector_scan(conn, scan)
        rows = await conn.execute(
            scope.nearest(columns, len(vector), limit).encode(),
            {**scope.params, "model": model, "vector": HalfVector(vector)},
        )
    return await rows.fetchall()


def decode_vectors(sent: Sequence[bytes | None]) -> NDArray[np.float32] | None:
    """Returns an array of shape (n, dimensions), with NaN for rows without a vector; None if no row has a vector.

    sent: vectors of equal dimensions in halfvec_send's form: two int16 (dimensions, unused), then float16, all
    big-endian.
    """
    first = next((vector for vector in sent if vector is not None), None)
    if first is None:
        return None
    unknown = first[:4] + b"\x7e\x00" * (len(first) // 2 - 2)
    rows = np.frombuffer(b"".join(vector or unknown for vector in sent), dtype=">f2").reshape(len(sent), -1)
    return rows[:, 2:].astype(np.float32)
