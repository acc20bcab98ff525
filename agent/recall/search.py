"""Recall over the database: scope → chunks → ranked turns, with a small cache of scopes that did not change."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.models.errors import ModelError
from turnlog.agent.recall.ranking import Query, Scored, VectorMismatch, rank
from turnlog.agent.recall.scope import ScopeIndex
from turnlog.projectors.chunk_lookup import (
    WHOLE_SCOPE_UP_TO,
    Columns,
    Found,
    Scope,
    Stamp,
    likely_part,
    scope_stamp,
    whole_scope,
    with_parents,
)
from turnlog.projectors.terms import terms
from turnlog.projectors.writer import Connection

CACHED_SCOPES = 16


class QueryEmbedder(Protocol):
    @property
    def model(self) -> str: ...

    async def embed_query(self, text: str) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class Recalled:
    """A turn that recall found. parts: what its score is the sum of; chunk_id: the chunk it stands in."""

    thread: str
    seq: int
    event_id: UUID
    source_id: str | None
    speaker: str
    text: str
    time: datetime
    score: float
    parts: dict[str, float]
    chunk_id: str

    def document(self, explain: bool = False) -> dict[str, Any]:
        shown = {
            "source_id": self.source_id,
            "event_id": str(self.event_id),
            "seq": self.seq,
            "thread": self.thread,
            "speaker": self.speaker,
            "time": self.time.isoformat(),
            "score": round(self.score, 6),
            "text": self.text,
        }
        return {**shown, "parts": {k: round(v, 6) for k, v in self.parts.items()}} if explain else shown


@dataclass(frozen=True, slots=True)
class _Loaded:
    stamp: Stamp
    columns: Columns
    index: ScopeIndex


class Recall:
    """Finds turns. embedder None, or failing: keyword search (A 6); `degraded` then says why."""

    def __init__(self, embedder: QueryEmbedder | None) -> None:
        self._embedder = embedder
        self._cache: OrderedDict[Scope, _Loaded] = OrderedDict()
        self.degraded: str | None = None

    async def search(
        self, conn: Connection, scope: Scope, query: str, k: int, before_seq: int | None = None
    ) -> list[Recalled]:
        """The k most relevant turns, best first. before_seq: later turns are left out, as still in the window."""
        loaded, vector = await self._load(conn, await with_parents(conn, scope), query)
        columns = loaded.columns
        if not columns.chunks:
            return []
        allowed = None
        if before_seq is not None:
            allowed = np.array([chunk.seqs[0] < before_seq for chunk in columns.chunks])
        try:
            return _best(Query(query, vector), loaded, k, allowed)
        except VectorMismatch as error:
            self.degraded = f"keyword search only: {error}"
            return _best(Query(query, None), loaded, k, allowed)

    async def _load(self, conn: Connection, scope: Scope, query: str) -> tuple[_Loaded, NDArray[np.float32] | None]:
        model = self._embedder.model if self._embedder else None
        stamp = await scope_stamp(conn, scope, model)
        vector = await self._vector(query, stamp)
        if stamp.chunks > WHOLE_SCOPE_UP_TO:
            columns = await likely_part(conn, scope, terms(query), vector, model)
            return _Loaded(stamp, columns, _index(columns)), vector
        loaded = self._cache.get(scope)
        if loaded is None or loaded.stamp != stamp:
            columns = await whole_scope(conn, scope, model)
            loaded = _Loaded(stamp, columns, _index(columns))
        self._remember(scope, loaded)
        return loaded, vector

    def _remember(self, scope: Scope, loaded: _Loaded) -> None:
        self._cache[scope] = loaded
        self._cache.move_to_end(scope)
        if len(self._cache) > CACHED_SCOPES:
            self._cache.popitem(last=False)

    async def _vector(self, query: str, stamp: Stamp) -> NDArray[np.float32] | None:
        self.degraded = None
        if self._embedder is None or not stamp.chunks:
            return None
        if not stamp.embedded:
            self.degraded = f"keyword search only: nothing here has a vector of {self._embedder.model} yet"
            return None
        try:
            vector = await self._embedder.embed_query(query)
        except ModelError as error:
            self.degraded = f"keyword search only: {error}"
            return None
        return vector


def _index(columns: Columns) -> ScopeIndex:
    chunks = columns.chunks
    return ScopeIndex.build(
        texts=[c.text for c in chunks],
        terms=[c.terms for c in chunks],
        speakers=[c.speaker for c in chunks],
        times=[c.created_at for c in chunks],
        threads=[c.thread for c in chunks],
        positions=columns.positions,
        vectors=columns.vectors,
        size=columns.size,
    )


def _best(query: Query, loaded: _Loaded, k: int, allowed: NDArray[np.bool_] | None) -> list[Recalled]:
    """The k best turns. A turn's pieces count once, so it may take more chunks, at last all of them."""
    chunks = loaded.columns.chunks
    wanted = 4 * k
    while True:
        found = _turns(rank(query, loaded.index, wanted, allowed=allowed), chunks, k)
        if len(found) == k or wanted >= len(chunks):
            return found
        wanted = len(chunks)


def _turns(ranked: list[Scored], chunks: list[Found], k: int) -> list[Recalled]:
    """One entry a turn: pieces of one turn count once, and a chunk said in several turns names each."""
    found: list[Recalled] = []
    seen: set[tuple[str, int]] = set()
    for scored in ranked:
        chunk = chunks[scored.chunk]
        for seq, event_id, source_id in zip(chunk.seqs, chunk.event_ids, chunk.source_ids, strict=True):
            if len(found) == k:
                return found
            if (chunk.thread, seq) in seen:
                continue
            seen.add((chunk.thread, seq))
            found.append(
                Recalled(
                    chunk.thread,
                    seq,
                    event_id,
                    source_id,
                    chunk.speaker,
                    chunk.text,
                    chunk.created_at,
                    scored.score,
                    dict(scored.parts),
                    chunk.id,
                )
            )
    return found
