"""Chooses the groups of memories that a language model merges or summarises. Pure.

Input: one user's memories of one kind with their vectors. Output: duplicate groups, which need no model, and merge
groups of near-duplicates or of unimportant memories about one subject, whose common text a model writes.

A merge group never contains memories that a person wrote or asked to remember, memories with a dedupe key (a newer
claim may end them) or a time to live, or texts that a model merged before.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Literal
from uuid import UUID, uuid5

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.memory.deciding.chains import closed
from turnlog.agent.memory.deciding.claims import may_contradict
from turnlog.agent.memory.deciding.policy import Policy, first_importance, importance_now
from turnlog.agent.memory.deciding.similarity import least_cosine
from turnlog.agent.memory.upkeep.compaction import (
    DUPLICATE_SIMILARITY,
    Compactable,
    DuplicateGroup,
    Separated,
    duplicate_groups,
    similar_pairs,
)
from turnlog.agent.memory.upkeep.near_vectors import NearPair, near_pairs
from turnlog.agent.models.language import is_chinese
from turnlog.agent.models.protocol import CountTokens
from turnlog.events.contracts import Derivation, MemoriesCompacted, Memory, MemorySource
from turnlog.projectors.models.memories.lookup import StoredMemory

MAX_MERGED = 5
MIN_SUMMARISED, MAX_SUMMARISED = 3, 20
RELATED_SIMILARITY = 0.5  # calibrated; 99 % of unrelated texts are less similar (similarity.py)
MAX_GROUP_TOKENS = 1_500
MAX_SUMMARY_CANDIDATES = 2_000  # memories of one kind that are compared with each other in one run
MAX_PER_ENTITY = 200  # memories about one entity that are compared with each other in one run
Method = Literal["merge", "summary"]
Excludes = Callable[[Compactable, Compactable], bool]


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Memories to be merged into one, oldest first. similarity: the lowest similarity of a member to the group's seed;
    None for a summary."""

    method: Method
    members: tuple[Compactable, ...]
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class MergeCriteria:
    """Criteria for members of a merge group. before: they have not changed since this time. similarity: lowest
    similarity in a merge. below: importance below which memories are summarised."""

    before: datetime
    similarity: float
    below: float

    def accepts(self, memory: Compactable) -> bool:
        plain = memory.origin in ("rule", "llm") and memory.dedupe_key is None and memory.expires_at is None
        return plain and memory.has_evidence and memory.touched_at <= self.before

    def accepts_for_summary(self, memory: Compactable) -> bool:
        return self.accepts(memory) and memory.importance < self.below


@dataclass(frozen=True, slots=True)
class _SimilarityGraph:
    """A graph of related memories. strength: strength[a][b] tells how strongly the memories with the indexes a and b
    are related. excludes: returns whether two memories must not be in one group. count_tokens: returns the number of
    tokens of a text."""

    memories: Sequence[Compactable]
    strength: Mapping[int, Mapping[int, float]]
    excludes: Excludes
    count_tokens: Callable[[str], int]

    def group_around(self, seed: int, taken: Collection[int], most: int) -> list[int]:
        """Returns the seed and its most strongly related free neighbours: at most `most` memories and MAX_GROUP_TOKENS
        tokens, without pairs that exclude each other."""
        group, tokens = [seed], self.count_tokens(self.memories[seed].content)
        for other in sorted(self.strength[seed], key=lambda n: (-self.strength[seed][n], n)):
            memory = self.memories[other]
            if other in taken or any(self.excludes(memory, self.memories[n]) for n in group):
                continue
            tokens += self.count_tokens(memory.content)
            if len(group) == most or tokens > MAX_GROUP_TOKENS:
                break
            group.append(other)
        return group


def near_duplicate_groups(
    memories: Sequence[Compactable],
    near: Iterable[NearPair],
    model: str,
    criteria: MergeCriteria,
    count_tokens: Callable[[str], int],
    separated: Sequence[frozenset[UUID]] = (),
) -> list[MergeGroup]:
    """Returns merge groups of near-duplicates that do not contradict each other, most important seed first.

    memories: memories of one kind. near: pairs of their indexes with raw cosines of `model`.
    """
    sets = Separated(separated)

    def excludes(memory: Compactable, other: Compactable) -> bool:
        return sets.contain(memory.id, other.id) or may_contradict(memory.content, other.content)

    def fits(memory: Compactable, other: Compactable, value: float) -> bool:
        near_enough = criteria.similarity <= value <= DUPLICATE_SIMILARITY
        return near_enough and _may_meet(memory, other, criteria.accepts)

    pairs = similar_pairs(memories, near, model, fits)
    graph = _SimilarityGraph(memories, pairs, excludes, count_tokens)
    groups: list[MergeGroup] = []
    taken = set[int]()
    for seed in sorted(pairs, key=lambda n: (-memories[n].importance, _age_order(memories[n]))):
        members = [] if seed in taken else graph.group_around(seed, taken, MAX_MERGED)
        if len(members) > 1:
            taken.update(members)
            lowest = min(pairs[seed][other] for other in members[1:])
            groups.append(MergeGroup("merge", _oldest_first(memories, members), round(lowest, 4)))
    return groups


def summary_candidates(
    memories: Sequence[Compactable], criteria: MergeCriteria, exclude: Collection[UUID] = ()
) -> list[int]:
    """Returns the indexes of the MAX_SUMMARY_CANDIDATES least important memories that may be summarised, in ascending
    order."""
    indexes = [
        n for n, memory in enumerate(memories) if criteria.accepts_for_summary(memory) and memory.id not in exclude
    ]
    return sorted(sorted(indexes, key=lambda n: memories[n].importance)[:MAX_SUMMARY_CANDIDATES])


def summary_groups(
    candidates: Sequence[Compactable],
    near: Iterable[NearPair],
    model: str,
    criteria: MergeCriteria,
    count_tokens: Callable[[str], int],
    separated: Sequence[frozenset[UUID]] = (),
) -> list[MergeGroup]:
    """Returns groups of MIN_SUMMARISED or more candidates about one entity or one subject, least important seed first.

    Unlike a merge, a summary may contain different claims: "likes tea" and "likes coffee".
    """
    sets = Separated(separated)

    def excludes(memory: Compactable, other: Compactable) -> bool:
        return sets.contain(memory.id, other.id)

    def fits(memory: Compactable, other: Compactable, value: float) -> bool:
        return value >= RELATED_SIMILARITY and _may_meet(memory, other, criteria.accepts_for_summary)

    related = similar_pairs(candidates, near, model, fits)
    _add_shared_entities(related, candidates)
    graph = _SimilarityGraph(candidates, related, excludes, count_tokens)
    groups: list[MergeGroup] = []
    taken = set[int]()
    for seed in sorted(related, key=lambda n: (candidates[n].importance, _age_order(candidates[n]))):
        members = [] if seed in taken else graph.group_around(seed, taken, MAX_SUMMARISED)
        if len(members) >= MIN_SUMMARISED:
            taken.update(members)
            groups.append(MergeGroup("summary", _oldest_first(candidates, members)))
    return groups


def _may_meet(first: Compactable, second: Compactable, accepts: Callable[[Compactable], bool]) -> bool:
    return accepts(first) and accepts(second) and _same_kind_and_language(first, second)


def _add_shared_entities(related: defaultdict[int, dict[int, float]], memories: Sequence[Compactable]) -> None:
    """Adds 1 to the strength of two memories for each entity that they share, which is more than any similarity
    adds."""
    by_entity = defaultdict[str, list[int]](list)
    for number, memory in enumerate(memories):
        for name in memory.entities:
            by_entity[name].append(number)
    for members in by_entity.values():
        for first, second in combinations(members[:MAX_PER_ENTITY], 2):
            if _same_kind_and_language(memories[first], memories[second]):
                strength = related[first].get(second, 0.0) + 1.0
                related[first][second] = related[second][first] = strength


def _same_kind_and_language(first: Compactable, second: Compactable) -> bool:
    """Returns whether the memories have the same kind and language, because the merged text has only one of each."""
    return first.kind == second.kind and is_chinese(first.content) == is_chinese(second.content)


def _oldest_first(memories: Sequence[Compactable], numbers: Iterable[int]) -> tuple[Compactable, ...]:
    return tuple(sorted((memories[n] for n in numbers), key=_age_order))


def _age_order(memory: Compactable) -> tuple[datetime, int, str]:
    return (memory.valid_from, memory.seq, str(memory.id))


def merge_event(
    method: Method,
    rows: Sequence[StoredMemory],
    text: str,
    event_id: UUID,
    now: datetime,
    policy: Policy,
    similarity: float | None,
    derivation: Derivation,
) -> MemoriesCompacted:
    """Returns the event that replaces the members with one merged memory from now on. rows: the valid members, oldest
    first.

    A merge takes the highest current importance of its members, a summary the initial importance of its kind; both take
    the lowest confidence. The evidence is the first and last quote of each member.
    """
    at = max(now, *(row.valid_from for row in rows))
    merge = method == "merge"
    categories = {row.category for row in rows}
    memory = Memory(
        id=uuid5(event_id, "made"),
        kind=rows[0].kind if merge else "SUMMARY",
        content=text,
        category=categories.pop() if len(categories) == 1 else None,
        importance=max(importance_now(row, at, policy) for row in rows) if merge else first_importance("SUMMARY", text),
        confidence=min(row.confidence for row in rows),
        origin="compaction",
        strategy="KEEP_BOTH",  # a vector match with a user's own memory must not end either of the two
        valid_from=at,
        sources=_evidence(rows),
        entities=tuple(dict.fromkeys(name for row in rows for name in row.entities)),
    )
    return MemoriesCompacted(
        method=method,
        members=tuple(row.id for row in rows),
        memory=memory,
        intervals=tuple(closed(row.id, at, memory.id, "merged") for row in rows),
        similarity=similarity,
        derivation=derivation,
    )


def _evidence(rows: Sequence[StoredMemory]) -> tuple[MemorySource, ...]:
    ends = (source for row in rows for source in (*row.sources[:1], *row.sources[-1:]))
    return tuple(sorted(dict.fromkeys(ends), key=lambda source: (source.said_at, source.seq)))


@dataclass(frozen=True, slots=True)
class MemoriesOfKind:
    """One user's memories of one kind. vectors: an array of shape (n, dimensions). separated: sets whose members are
    never merged with each other."""

    memories: Sequence[Compactable]
    vectors: NDArray[np.float16]
    model: str
    separated: Sequence[frozenset[UUID]]

    def duplicates_and_merges(
        self, criteria: MergeCriteria | None, count_tokens: CountTokens
    ) -> tuple[list[DuplicateGroup], list[MergeGroup]]:
        """Returns duplicate groups, and merge groups of the other memories. Without criteria, there are no merge
        groups."""
        if criteria is None:
            near = self._near_pairs(DUPLICATE_SIMILARITY)
            return duplicate_groups(self.memories, near, self.model, self.separated), []
        pairs = list(self._near_pairs(min(DUPLICATE_SIMILARITY, criteria.similarity)))
        duplicates = duplicate_groups(self.memories, pairs, self.model, self.separated)
        taken = {member.id for group in duplicates for member in group.members}
        free = [pair for pair in pairs if not {self.memories[n].id for n in (pair.first, pair.second)} & taken]
        merges = near_duplicate_groups(self.memories, free, self.model, criteria, count_tokens, self.separated)
        return duplicates, merges

    def summaries(
        self, criteria: MergeCriteria, count_tokens: CountTokens, exclude: Collection[UUID]
    ) -> list[MergeGroup]:
        numbers = summary_candidates(self.memories, criteria, exclude)
        near = near_pairs(self.vectors[numbers], least_cosine(self.model, RELATED_SIMILARITY))
        candidates = [self.memories[n] for n in numbers]
        return summary_groups(candidates, near, self.model, criteria, count_tokens, self.separated)

    def _near_pairs(self, wanted: float) -> Iterator[NearPair]:
        """Yields every pair whose calibrated similarity may reach `wanted`."""
        return near_pairs(self.vectors, least_cosine(self.model, wanted))
