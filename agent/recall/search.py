"""Recall over the database: scope → chunks → ranked turns.

A small scope is loaded whole and cached until it changes; of a large one a sample is cached (large.py).
"""

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import zip_longest
from typing import Any, Protocol
from uuid import UUID

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from turnlog.agent.models.errors import ModelError
from turnlog.agent.recall.confidence import Evidence, evidence_for
from turnlog.agent.recall.large import ScopeSample, candidate_chunks, sample_scope
from turnlog.agent.recall.questions import Question, read_question
from turnlog.agent.recall.ranking import Query, Scored, rank_parts
from turnlog.agent.recall.scope import REACH, ScopeIndex
from turnlog.agent.recall.space import Space, VectorMismatch
from turnlog.agent.runtime import Runtime
from turnlog.events.personal_data_caches import holds_words
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.candidates import Key, found_at
from turnlog.projectors.models.chunks.chunking import day
from turnlog.projectors.models.chunks.lookup import (
    WHOLE_SCOPE_UP_TO,
    Columns,
    Found,
    Scope,
    Stamp,
    Stamps,
    changed_threads,
    scope_stamps,
    thread_stamps,
    whole_scope,
    with_parents,
)

EMBEDDING_PATIENCE_S = 5.0  # then what is sought is found by words; a server that hangs must stop nobody
CACHED_ROWS = 64_000  # of small scopes, of 384 dimensions 100 MB
CACHED_SAMPLES = 16
INDEXED_AT_ONCE = 500  # chunks; an index of more is made in a thread, so that others do not wait for it


class TurnReranker(Protocol):
    """candidates: how many turns of a search it gets."""

    @property
    def candidates(self) -> int: ...

    async def scores(self, query: str, documents: Sequence[str], asker: str | None = None) -> list[float]: ...


class QueryEmbedder(Protocol):
    @property
    def model(self) -> str: ...

    async def embed_query(self, text: str, asker: str | None = None) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class Recalled:
    """A turn that recall found. score: the sum of `parts`. chunk_id: of the chunk that was found.

    asked: number of the part of the question that it was found for, the first one's 1. rerank: a reranker's score,
    which then decides the order; None without one.
    """

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
    asked: int = 1
    rerank: float | None = None

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
        if not explain:
            return shown
        parts = {k: round(v, 6) for k, v in self.parts.items()}
        return {**shown, "asked": self.asked, "parts": parts, "chunk_id": self.chunk_id, "rerank": self.rerank}


@dataclass(frozen=True, slots=True)
class _Loaded:
    """firsts: sequence of the first turn of each chunk. columns: of a small scope. keys: of a large one."""

    index: ScopeIndex
    firsts: NDArray[np.int64]
    columns: Columns | None = None
    keys: tuple[Key, ...] = ()

    @property
    def names(self) -> Collection[str]:
        """Terms of the speakers' names."""
        return self.index.speakers.keys()

    def allowed(self, before_seq: int | None, without: Collection[str]) -> NDArray[np.bool_] | None:
        """The chunks of turns before a sequence and of other threads than these; None for all."""
        if before_seq is None and not without:
            return None
        allowed = np.ones(self.index.count, dtype=np.bool_) if before_seq is None else self.firsts < before_seq
        if without:
            threads = [key[0] for key in self.keys] if self.columns is None else [c.thread for c in self.columns.chunks]
            allowed &= np.array([thread not in without for thread in threads], dtype=np.bool_)
        return allowed

    @property
    def rows(self) -> int:
        """The memory it takes, in rows of vectors: its own, and the covariance with its inverse."""
        return self.index.count + (0 if self.index.vectors is None else 2 * self.index.vectors.shape[1])

    def serves(self, before_seq: int, now: Stamp) -> bool:
        """Whether a search for turns before a sequence finds the same here as in the whole scope of today.

        now: of the chunks before the sequence. Of later chunks only the next REACH count, as neighbours; more of them
        change nothing but how rare words are, a little.
        """
        if self.columns is None or np.count_nonzero(self.firsts >= before_seq) < REACH:
            return False
        old = self.firsts < before_seq
        turns = sum(bisect_left(chunk.seqs, before_seq) for chunk in self.columns.chunks)
        embedded = int(self.index.embedded[old].sum())
        last = int(self.firsts[old].max(initial=0))
        return now == Stamp(int(old.sum()), embedded, last, turns)


@dataclass(frozen=True, slots=True)
class _Best:
    """The turns found for a part of the question, best first, and what there is for an answer."""

    turns: list[Recalled]
    evidence: Evidence | None


class Recall:
    """Finds turns. Without an embedder, or when it fails: keyword search; `degraded` then has the reason. A
    reranker orders what was found; when it fails or is slow, the order stays, and `degraded` says that too.

    asker: as of a ChatRequest. question: how the last search read its query. evidence: what there is for an answer to
    it, to its best part; None where that cannot be judged, as for an order or a summary. evidence_of_parts: for each
    part, also of those.
    """

    def __init__(self, embedder: QueryEmbedder | None, reranker: TurnReranker | None = None) -> None:
        self._embedder, self._reranker = embedder, reranker
        self.asker: str | None = None
        self._whole: LRUCache[Scope, tuple[Stamp, _Loaded]] = LRUCache(CACHED_ROWS, getsizeof=lambda kept: kept[1].rows)
        self._samples: LRUCache[Scope, ScopeSample] = LRUCache(CACHED_SAMPLES)
        self.degraded: str | None = None
        self.question: Question | None = None
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
        """The k most relevant turns, best first. before_seq: turns from it on are excluded, as still in the window.
        without: threads whose turns are excluded.

        Of a question of several parts the best turns for each come in turn. now, zone: when and where it was asked;
        without `now` the times that it names count only as words.
        """
        scope = await with_parents(conn, scope)
        state = await self._state(conn, scope, before_seq)
        chunks = await self._chunks_of(conn, scope, state, before_seq, without)
        names = chunks.names if chunks else ()
        self.question = question = read_question(query, now, zone, names)
        queries = [Query(part.text, None, part.spans, question.words_of) for part in question.parts]
        count = k if self._reranker is None else max(k, self._reranker.candidates)

        embedded = await self._with_vectors(queries, state if isinstance(state, ScopeSample) else state.whole)
        self.evidence, self.evidence_of_parts = None, []
        if chunks is None:
            return []
        try:
            found = await self._found(conn, scope, embedded, question, chunks, count, before_seq, without)
        except VectorMismatch as error:
            self.degraded = f"keyword search only: {error}"
            found = await self._found(conn, scope, queries, question, chunks, count, before_seq, without)
        self.evidence, self.evidence_of_parts = _evidence(question, found), [one.evidence for one in found]
        turns = [one.turns for one in found]
        return _in_turn(await self._reranked([part.text for part in question.parts], turns), k)

    @property
    def _model(self) -> str | None:
        return self._embedder.model if self._embedder else None

    async def _state(self, conn: Connection, scope: Scope, before_seq: int | None) -> ScopeSample | Stamps:
        """The sample of a large scope, or the stamps of a small one. A scope with a cached sample is not counted
        again."""
        if scope not in self._samples:
            stamps = await scope_stamps(conn, scope, self._model, before_seq)
            if not stamps.whole.large:
                return stamps
        about = await sample_scope(conn, scope, self._model, self._samples.get(scope))
        if 2 * about.chunks > WHOLE_SCOPE_UP_TO:
            self._samples[scope] = about
            return about
        self._samples.pop(scope, None)  # a concurrent search may have removed it
        return await scope_stamps(conn, scope, self._model, before_seq)

    async def _found(
        self,
        conn: Connection,
        scope: Scope,
        queries: Sequence[Query],
        question: Question,
        chunks: "ScopeSample | _Loaded",
        k: int,
        before_seq: int | None,
        without: Collection[str],
    ) -> list[_Best]:
        if isinstance(chunks, ScopeSample):
            keys, index = await candidate_chunks(conn, scope, queries, self._model, chunks, k)
            chunks = _Loaded(index, np.array([key[1] for key in keys], dtype=np.int64), keys=tuple(keys))
        return await _best(conn, scope, queries, question, chunks, k, before_seq, without)

    async def _chunks_of(
        self,
        conn: Connection,
        scope: Scope,
        state: ScopeSample | Stamps,
        before_seq: int | None,
        without: Collection[str],
    ) -> "ScopeSample | _Loaded | None":
        """Of a small scope all; None without any. They are indexed again where they changed, but not for every turn
        that is added behind those that are sought, or in a thread that is excluded."""
        if isinstance(state, ScopeSample):
            return state
        if not state.whole.chunks:
            return None
        kept = self._whole.get(scope)
        if kept and (kept[0] == state.whole or (before_seq is not None and kept[1].serves(before_seq, state.before))):
            return kept[1]
        former = kept[1].columns if kept and scope.user is not None else None
        space = kept[1].index.statistics.space if kept and former else None
        if former is None:
            columns = await whole_scope(conn, scope, self._model)
        else:
            changed = changed_threads(former, await thread_stamps(conn, scope, self._model))
            if kept and changed <= set(without):
                return kept[1]
            columns = former.replacing(changed, await whole_scope(conn, scope, self._model, changed))
        if not columns.chunks:
            return None
        in_thread = len(columns.chunks) > INDEXED_AT_ONCE
        loaded = await asyncio.to_thread(_indexed, columns, space) if in_thread else _indexed(columns, space)
        self._whole[scope] = (state.whole, loaded)
        return loaded

    async def _with_vectors(self, queries: list[Query], state: ScopeSample | Stamp) -> list[Query]:
        """All with their vectors, or none: scores with and without a vector cannot be compared."""
        self.degraded = None
        if self._embedder is None or not state.chunks:
            return queries
        if not state.embedded:
            self.degraded = f"keyword search only: nothing here has a vector of {self._embedder.model} yet"
            return queries
        try:
            async with asyncio.timeout(EMBEDDING_PATIENCE_S):
                return [replace(one, vector=await self._embedder.embed_query(one.text, self.asker)) for one in queries]
        except ModelError as error:
            self.degraded = f"keyword search only: {error}"
        except TimeoutError:
            self.degraded = f"keyword search only: the query's vector was not there after {EMBEDDING_PATIENCE_S:g} s"
        return queries

    async def _reranked(self, parts: Sequence[str], found: list[list[Recalled]]) -> list[list[Recalled]]:
        """Each part's turns by the reranker's scores; as they are where it fails for one."""
        reranker = self._reranker
        if reranker is None:
            return found
        asked = [(text, turns) for text, turns in zip(parts, found, strict=True) if len(turns) > 1]
        try:
            calls = [reranker.scores(text, list(map(_document, turns)), self.asker) for text, turns in asked]
            given = await asyncio.gather(*calls)
        except ModelError as error:
            problem = f"not reranked: {error}"
            self.degraded = f"{self.degraded}; {problem}" if self.degraded else problem
            return found
        scores = iter(given)
        return [_by_score(turns, next(scores)) if len(turns) > 1 else turns for turns in found]


def _document(turn: Recalled) -> str:
    return f"[{day(turn.time)}] {turn.speaker}: {turn.text}"


def _by_score(turns: Sequence[Recalled], scores: Sequence[float]) -> list[Recalled]:
    scored = [replace(turn, rerank=score) for turn, score in zip(turns, scores, strict=True)]
    return sorted(scored, key=lambda turn: -(turn.rerank or 0.0))


def _evidence(question: Question, found: Sequence[_Best]) -> Evidence | None:
    """Of the part that is answered best. An order or a summary is made of many turns: no single one has to answer."""
    if question.kind != "fact":
        return None
    return max((one.evidence for one in found if one.evidence), key=lambda one: one.confidence, default=None)


def _in_turn(found: Sequence[Sequence[Recalled]], k: int) -> list[Recalled]:
    """The best of each part, then the second best of each; a turn that several parts found comes once."""
    turns: dict[tuple[str, int], Recalled] = {}
    for best in zip_longest(*found):
        for part, one in enumerate(best, 1):
            if one is not None:
                turns.setdefault((one.thread, one.seq), replace(one, asked=part))
    return list(turns.values())[:k]


def _indexed(columns: Columns, space: Space | None) -> _Loaded:
    chunks = columns.chunks
    index = ScopeIndex.build(
        texts=[c.text for c in chunks],
        terms=[c.terms for c in chunks],
        speakers=[c.speaker for c in chunks],
        times=[c.created_at for c in chunks],
        roles=[c.role for c in chunks],
        threads=[c.thread for c in chunks],
        vectors=columns.vectors,
        space=space,
    )
    return _Loaded(index, np.array([c.seqs[0] for c in chunks], dtype=np.int64), columns)


async def _best(
    conn: Connection,
    scope: Scope,
    queries: Sequence[Query],
    question: Question,
    loaded: _Loaded,
    k: int,
    before_seq: int | None,
    without: Collection[str],
) -> list[_Best]:
    """The k best turns for each part. The pieces of a turn count once, so more chunks may be needed, at last all of
    them."""
    allowed = loaded.allowed(before_seq, without)
    wanted = 2 * k
    while True:
        ranked = rank_parts(queries, loaded.index, wanted, allowed=allowed)
        found = [_turns(one, await _chunks(conn, scope, loaded, one), k, before_seq) for one in ranked]
        if all(len(turns) == k for turns in found) or wanted >= loaded.index.count:
            first = [one[0].chunk if one else None for one in ranked]
            return [
                _Best(turns, evidence_for(part.undated, loaded.index, best, allowed))
                for turns, part, best in zip(found, question.parts, first, strict=True)
            ]
        wanted = loaded.index.count


async def _chunks(conn: Connection, scope: Scope, loaded: _Loaded, ranked: Sequence[Scored]) -> list[Found]:
    """The ranked chunks; of a large scope they are read only now."""
    if loaded.columns is not None:
        return [loaded.columns.chunks[scored.chunk] for scored in ranked]
    return await found_at(conn, scope, [loaded.keys[scored.chunk] for scored in ranked])


def _turns(ranked: Sequence[Scored], chunks: Sequence[Found], k: int, before_seq: int | None) -> list[Recalled]:
    """One entry per turn: pieces of one turn count once, and a chunk of several turns gives an entry for each of those
    before the sequence."""
    found: list[Recalled] = []
    seen: set[tuple[str, int]] = set()
    for scored, chunk in zip(ranked, chunks, strict=True):
        for seq, event_id, source_id in zip(chunk.seqs, chunk.event_ids, chunk.source_ids, strict=True):
            if len(found) == k:
                return found
            if (chunk.thread, seq) in seen or (before_seq is not None and seq >= before_seq):
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


def recall_of(runtime: Runtime, asker: str | None, keyword_only: bool = False) -> Recall:
    """The runtime's search over turns: its caches are shared, `asker` and `degraded` belong to the caller alone."""
    found = copy(runtime.kept(_keywords if keyword_only else _vectors))
    found.asker = asker
    return found


def _vectors(runtime: Runtime) -> Recall:
    return Recall(runtime.models.embedder, runtime.models.reranker)


def _keywords(_runtime: Runtime) -> Recall:
    return Recall(None)
