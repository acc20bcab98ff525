"""Memories of one user that say the same become one (M6; E 8.8). Pure.

The most important of a group stays, and the others end for it; nothing is deleted, so that a compaction can be undone.
A memory joins another one only by its own likeness to it: what is like its neighbour's neighbour is not a duplicate.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from turnlog.agent.memories.chains import closed, lasts_as_long
from turnlog.agent.memories.claims import same_claim
from turnlog.agent.memories.near import Near
from turnlog.agent.memories.similarity import similarity
from turnlog.events.memory_contracts import Interval, MemoriesCompacted, Origin

SAME = 0.92  # calibrated similarity from which two memories are one (E 8.8)


@dataclass(frozen=True, slots=True)
class Compactable:
    """A valid memory as compaction sees it. importance: what is left of it now.

    touched_at: when it was last said, learned, rated or read. has_evidence: it names the turns that say it.
    """

    id: UUID
    kind: str
    content: str
    dedupe_key: str | None
    importance: float
    valid_from: datetime
    seq: int
    expires_at: datetime | None
    origin: Origin
    entities: tuple[str, ...]
    touched_at: datetime
    has_evidence: bool


@dataclass(frozen=True, slots=True)
class Group:
    """kept stays, others end for it. similarity: the least one of another to the kept."""

    kept: Compactable
    others: tuple[Compactable, ...]
    similarity: float


class Apart:
    """Sets of memories, of which no two in one set are made one."""

    def __init__(self, sets: Sequence[frozenset[UUID]]) -> None:
        self._numbers: defaultdict[UUID, set[int]] = defaultdict(set)
        for number, members in enumerate(sets):
            for one in members:
                self._numbers[one].add(number)

    def hold(self, first: UUID, second: UUID) -> bool:
        return not self._numbers.get(first, set()).isdisjoint(self._numbers.get(second, ()))


def same_ones(
    memories: Sequence[Compactable], near: Iterable[Near], model: str, apart: Sequence[frozenset[UUID]] = ()
) -> list[Group]:
    """Groups of memories that say the same; near: by their numbers, with raw cosines of the model.

    apart: memories that somebody took apart again; no two of one such set are made one.
    """
    alike = _alike(memories, near, model, apart)
    taken = set[int]()
    groups: list[Group] = []
    for number in sorted(alike, key=lambda n: _rank(memories[n])):
        others = [other for other in alike[number] if other not in taken]
        if number in taken or not others:
            continue
        taken |= {number, *others}
        least = min(alike[number][other] for other in others)
        ordered = sorted((memories[other] for other in others), key=_rank)
        groups.append(Group(memories[number], tuple(ordered), round(least, 4)))
    return groups


def deduped(group: Group) -> MemoriesCompacted:
    return MemoriesCompacted(
        method="dedupe",
        members=(group.kept.id, *(other.id for other in group.others)),
        kept=group.kept.id,
        intervals=tuple(
            closed(other.id, max(other.valid_from, group.kept.valid_from), group.kept.id, "duplicate")
            for other in group.others
        ),
        similarity=group.similarity,
    )


def reopened(members: Iterable[UUID], replaced_by: Mapping[UUID, UUID | None], into: UUID) -> tuple[Interval, ...]:
    """What takes a compaction back: members that ended for `into` and for nothing since hold again."""
    return tuple(Interval(memory_id=one) for one in members if replaced_by.get(one) == into)


def _alike(
    memories: Sequence[Compactable], near: Iterable[Near], model: str, apart: Sequence[frozenset[UUID]]
) -> dict[int, dict[int, float]]:
    found: defaultdict[int, dict[int, float]] = defaultdict(dict)
    sets = Apart(apart)
    for pair in near:
        first, second = memories[pair.first], memories[pair.second]
        likeness = similarity(model, pair.cosine, first.content, second.content)
        if likeness <= SAME or not _says_the_same(first, second):
            continue
        if not sets.hold(first.id, second.id):
            found[pair.first][pair.second] = found[pair.second][pair.first] = likeness
    return found


def _says_the_same(first: Compactable, second: Compactable) -> bool:
    """Two keys know better than words: different ones mean something else, and equal ones were settled by them."""
    return (
        first.kind == second.kind
        and None in (first.dedupe_key, second.dedupe_key)
        and same_claim(first.content, second.content)
        and lasts_as_long(*(one.expires_at for one in sorted((first, second), key=_rank)))
    )


def _rank(one: Compactable) -> tuple[bool, float, datetime, int]:
    """The best first: one with a key can be contradicted; then the most important, then the first that was said."""
    return (one.dedupe_key is None, -one.importance, one.valid_from, one.seq)
