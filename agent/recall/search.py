"""Searches the database for turns: scope → chunks → ranked turns.

A small scope is loaded completely and cached, and new chunks are added to it; for a large scope, a sample is cached
(large.py).
"""

import asyncio
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from itertools import zip_longest
from typing import Protocol

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from turnlog.agent.models.errors import ModelError
from turnlog.agent.recall.best_turns import BestTurns, Recalled, best_turns
from turnlog.agent.recall.confidence import Evidence
from turnlog.agent.recall.large import ScopeSample, candidate_chunks, sample_scope
from turnlog.agent.recall.loaded_scope import LoadedScope, load_scope
from turnlog.agent.recall.questions import QuestionAnalysis, read_question
from turnlog.agent.recall.ranking import Query
from turnlog.agent.recall.space import VectorMismatch
from turnlog.agent.runtime import Runtime
from turnlog.events.personal_data_caches import holds_words
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.chunking import day
from turnlog.projectors.models.chunks.lookup import WHOLE_SCOPE_UP_TO, Scope, Stamp, with_parents

EMBEDDING_PATIENCE_S = 5.0  # after this time the search uses only words, so that a hanging server does not block it
CACHED_ROWS = 64_000  # rows of small scopes in memory; 100 MB at 384 dimensions
CACHED_SAMPLES = 16


class TurnReranker(Protocol):
    """Reranks the turns of a search. candidates: the number of turns to rerank."""

    @property
    def candidates(self) -> int: ...

    async def scores(self, query: str, documents: Sequence[str], asker: str | None = None) -> list[float]: ...


class QueryEmbedder(Protocol):
    @property
    def model(self) -> str: ...

    async def embed_query(self, text: str, asker: str | None = None) -> NDArray[np.float32]: ...


class Recall:
    """Finds turns. Without an embedder, the search uses keywords only; it does so too if the embedder fails or nothing
    has a vector, and `degraded` then has the reason. A reranker orders the result; if it fails or is slow, the order
    stays, and `degraded` says so.

    asker: as in a ChatRequest. question: the analysis of the last query. evidence: the evidence for the part of it that
    is answered best; None if it cannot be judged, as for an order or a summary. evidence_of_parts: the evidence for
    each part, also for an order or a summary; [] if the scope is empty.
    """

    def __init__(self, embedder: QueryEmbedder | None, reranker: TurnReranker | None = None) -> None:
        self._embedder, self._reranker = embedder, reranker
        self.asker: str | None = None
        self._whole: LRUCache[Scope, LoadedScope] = LRUCache(CACHED_ROWS, getsizeof=lambda kept: kept.rows)
        self._samples: LRUCache[Scope, ScopeSample] = LRUCache(CACHED_SAMPLES)
        self.degraded: str | None = None
        self.question: QuestionAnalysis | None = None
        self.evidence: Evidence | None = None
        self.evidence_of_parts: list[Evidence | None] = []
        holds_words(self)

    def forget_all(self) -> None:
        self._whole.clear()
        self._samples.clear()

    async def search(
        self,
        conn: Connection,
        scope: Scope,
        query: str,
        k: int,
        before_seq: int | None = None,
        now: datetime | None = None,
        zone: tzinfo = UTC,
        without: Collection[str] = (),
    ) -> list[Recalled]:
        """Returns the k most relevant turns, best first. before_seq: turns from this sequence on are excluded, because
        they are still in the window. without: threads whose turns are excluded.

        For a question with several parts, the best turns for the parts alternate. now: when the question was asked;
        without it, dates in the question count only as words. zone: the time zone in which its dates are meant.
        """
        scope = await with_parents(conn, scope)
        chunks = await self._chunks_of(conn, scope, before_seq)
        self.question = question = read_question(query, now, zone, chunks.names)
        queries = [Query(part.text, None, part.spans, question.words_of) for part in question.parts]
        count = k if self._reranker is None else max(k, self._reranker.candidates)

        embedded = await self._with_vectors(queries, chunks if isinstance(chunks, ScopeSample) else chunks.stamp())
        self.evidence, self.evidence_of_parts = None, []
        if isinstance(chunks, LoadedScope) and not chunks.keys:
            return []
        try:
            by_part = await self._found(conn, scope, embedded, question, chunks, count, before_seq, without)
        except VectorMismatch as error:
            self.degraded = f"keyword search only: {error}"
            by_part = await self._found(conn, scope, queries, question, chunks, count, before_seq, without)
        self.evidence, self.evidence_of_parts = _evidence(question, by_part), [best.evidence for best in by_part]
        turns = [best.turns for best in by_part]
        return _in_turn(await self._reranked([part.text for part in question.parts], turns), k)

    @property
    def _model(self) -> str | None:
        return self._embedder.model if self._embedder else None

    async def _chunks_of(self, conn: Connection, scope: Scope, before_seq: int | None) -> ScopeSample | LoadedScope:
        """Returns the sample of a large scope, or all chunks of a small scope. If a sample is cached, the scope is not
        loaded again to see whether it is small."""
        if scope not in self._samples and (loaded := await self._loaded(conn, scope, before_seq)):
            return loaded
        about = await sample_scope(conn, scope, self._model, self._samples.get(scope))
        if 2 * about.chunks > WHOLE_SCOPE_UP_TO:
            self._samples[scope] = about
            return about
        self._samples.pop(scope, None)  # a concurrent search may have removed it
        return await self._loaded(conn, scope, before_seq) or about

    async def _loaded(self, conn: Connection, scope: Scope, before_seq: int | None) -> LoadedScope | None:
        loaded = await load_scope(conn, scope, self._model, self._whole.get(scope), before_seq)
        if loaded is not None:
            self._whole[scope] = loaded
        return loaded

    async def _found(
        self,
        conn: Connection,
        scope: Scope,
        queries: Sequence[Query],
        question: QuestionAnalysis,
        chunks: ScopeSample | LoadedScope,
        k: int,
        before_seq: int | None,
        without: Collection[str],
    ) -> list[BestTurns]:
        if isinstance(chunks, ScopeSample):
            keys, index = await candidate_chunks(conn, scope, queries, self._model, chunks, k)
            chunks = LoadedScope(index, keys)
        return await best_turns(conn, scope, queries, question, chunks, k, before_seq, without)

    async def _with_vectors(self, queries: list[Query], state: ScopeSample | Stamp) -> list[Query]:
        """Returns all queries with vectors or all without vectors, because scores with and without a vector cannot be
        compared."""
        self.degraded = None
        if self._embedder is None or not state.chunks:
            return queries
        if not state.embedded:
            self.degraded = f"keyword search only: nothing here has a vector of {self._embedder.model} yet"
            return queries
        try:
            async with asyncio.timeout(EMBEDDING_PATIENCE_S):
                return [
                    replace(query, vector=await self._embedder.embed_query(query.text, self.asker)) for query in queries
                ]
        except ModelError as error:
            self.degraded = f"keyword search only: {error}"
        except TimeoutError:
            self.degraded = f"keyword search only: the query's vector was not there after {EMBEDDING_PATIENCE_S:g} s"
        return queries

    async def _reranked(self, parts: Sequence[str], by_part: list[list[Recalled]]) -> list[list[Recalled]]:
        """Returns the turns of each part in the order of the reranker's scores; unchanged if the reranker fails for any
        part."""
        reranker = self._reranker
        if reranker is None:
            return by_part
        asked = [(text, turns) for text, turns in zip(parts, by_part, strict=True) if len(turns) > 1]
        try:
            calls = [reranker.scores(text, list(map(_document, turns)), self.asker) for text, turns in asked]
            scores = iter(await asyncio.gather(*calls))
        except ModelError as error:
            problem = f"not reranked: {error}"
            self.degraded = f"{self.degraded}; {problem}" if self.degraded else problem
            return by_part
        return [_by_score(turns, next(scores)) if len(turns) > 1 else turns for turns in by_part]


def _document(turn: Recalled) -> str:
    return f"[{day(turn.time)}] {turn.speaker}: {turn.text}"


def _by_score(turns: Sequence[Recalled], scores: Sequence[float]) -> list[Recalled]:
    scored = [replace(turn, rerank=score) for turn, score in zip(turns, scores, strict=True)]
    return sorted(scored, key=lambda turn: -(turn.rerank or 0.0))


def _evidence(question: QuestionAnalysis, by_part: Sequence[BestTurns]) -> Evidence | None:
    """Returns the evidence for the part that is answered best; None for an order or a summary, which no single turn has
    to answer."""
    if question.kind != "fact":
        return None
    return max(
        (best.evidence for best in by_part if best.evidence), key=lambda evidence: evidence.confidence, default=None
    )


def _in_turn(by_part: Sequence[Sequence[Recalled]], k: int) -> list[Recalled]:
    """Returns the best turn of each part, then the second best of each, and so on; each turn is listed once."""
    turns: dict[tuple[str, int], Recalled] = {}
    for best in zip_longest(*by_part):
        for part, turn in enumerate(best, 1):
            if turn is not None:
                turns.setdefault((turn.thread, turn.seq), replace(turn, asked=part))
    return list(turns.values())[:k]


def recall_of(runtime: Runtime, asker: str | None, keyword_only: bool = False) -> Recall:
    """Returns the runtime's search over turns; its caches are shared, but `asker` and the values that a search sets,
    such as `degraded`, belong to the caller."""
    search = copy(runtime.cached(_keywords if keyword_only else _vectors))
    search.asker = asker
    return search


def _vectors(runtime: Runtime) -> Recall:
    return Recall(runtime.models.embedder, runtime.models.reranker)


def _keywords(_runtime: Runtime) -> Recall:
    return Recall(None)
