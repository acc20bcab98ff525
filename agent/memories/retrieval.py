"""Recall of a user's memories: those that help with a question, best first, each with its reasons (M7, E 9.2)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.memories.dates import Dated, dates_in
from turnlog.agent.memories.fusion import DEFAULT, Ranked, Weights, fused
from turnlog.agent.memories.policy import SEED, Policy, tier_of
from turnlog.agent.models.errors import ModelError
from turnlog.projectors.memory_lookup import StoredMemory, memories_by_id
from turnlog.projectors.memory_search import Asked, MemoryScope, Size, candidates, thread_size
from turnlog.projectors.terms import terms
from turnlog.projectors.writer import Connection

TOP_K = 5
MAX_TERMS = 32  # of a question; more would only say the same again
_WITHOUT = "words, entities and dates only"


class QueryEmbedder(Protocol):
    @property
    def model(self) -> str: ...

    async def embed_query(self, text: str) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class RecalledMemory:
    """A memory that recall found, and why it stands where it stands."""

    memory: StoredMemory
    rank: Ranked

    def explain(self) -> dict[str, Any]:
        """Each part's value (0 to 1) and weight, and what became of them: score = similarity × importance ^ power."""
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
    """best first. degraded: why vectors took no part, None when they did. dates, names: what the question was seen to
    speak of."""

    memories: tuple[RecalledMemory, ...] = ()
    degraded: str | None = None
    dates: tuple[Dated, ...] = ()
    names: tuple[str, ...] = ()


class MemoryRecall:
    """Finds memories. embedder None, or failing: by words, entities and dates (E 13.3), and the result says so.

    patience_s: how long to wait for the question's vector; None: as long as the embedder does. zone: where the users
    live, whose days the dates in their questions mean.
    """

    def __init__(
        self,
        embedder: QueryEmbedder | None,
        policy: Policy = SEED,
        weights: Weights = DEFAULT,
        patience_s: float | None = None,
        zone: tzinfo = UTC,
    ) -> None:
        self._embedder, self._policy, self._weights = embedder, policy, weights
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
        """The k most relevant memories; with max_tokens, as many of these as fit in it, by `tokens_of` each.

        Dates in the question are relative to scope.as_of or scope.now.
        """
        model = self._embedder.model if self._embedder else None
        size = await thread_size(conn, scope, question, model)
        if not size.memories:
            return MemoriesFound()
        vector, degraded = await self._vector(question, size)
        now = scope.as_of or scope.now
        dates = dates_in(question, now, self._zone)
        sought = list(dict.fromkeys(terms(question)))[:MAX_TERMS]
        asked = Asked(sought, vector, model, [(one.from_time, one.to_time) for one in dates])
        ranked = fused(
            await candidates(conn, scope, asked, size), now, self._weights, self._policy, bool(size.names), bool(dates)
        )
        best = await _rows(conn, scope, ranked[:k])
        kept = best if max_tokens is None or tokens_of is None else _within(best, max_tokens, tokens_of)
        return MemoriesFound(tuple(kept), degraded, tuple(dates), size.names)

    async def _vector(self, question: str, size: Size) -> tuple[NDArray[np.float32] | None, str | None]:
        if self._embedder is None:
            return None, f"{_WITHOUT}: vectors were left out"
        if size.dimensions is None:
            return None, f"{_WITHOUT}: none of these memories has a vector of {self._embedder.model} yet"
        try:
            async with asyncio.timeout(self._patience_s):
                vector = await self._embedder.embed_query(question)
        except ModelError as error:
            return None, f"{_WITHOUT}: {error}"
        except TimeoutError:
            return None, f"{_WITHOUT}: the question's vector was not there after {self._patience_s:g} s"
        if len(vector) != size.dimensions:
            return None, f"{_WITHOUT}: the question has {len(vector)} dimensions, the memories {size.dimensions}"
        return vector, None


async def _rows(conn: Connection, scope: MemoryScope, ranked: list[Ranked]) -> list[RecalledMemory]:
    found = await memories_by_id(conn, scope.tenant, scope.thread, [one.candidate.id for one in ranked])
    return [RecalledMemory(found[one.candidate.id], one) for one in ranked if one.candidate.id in found]


def _within(
    found: list[RecalledMemory], max_tokens: int, tokens_of: Callable[[StoredMemory], int]
) -> list[RecalledMemory]:
    """In their order; one that is too large makes room for a smaller one behind it."""
    kept: list[RecalledMemory] = []
    for one in found:
        cost = tokens_of(one.memory)
        if cost <= max_tokens:
            max_tokens -= cost
            kept.append(one)
    return kept
