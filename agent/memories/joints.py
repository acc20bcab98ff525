"""Which old memories a language model is to make one: those nearly alike, and faint ones about one thing (M6). Pure.

Left out are memories that something else may still change by itself: what a person wrote or asked to remember, what
has a dedupe key (a newer claim can end it) or a time to live, and what compaction made before, for a model is not to
feed on a model's words.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Literal
from uuid import UUID

from turnlog.agent.memories.claims import may_contradict
from turnlog.agent.memories.compaction import SAME, Apart, Compactable
from turnlog.agent.memories.near import Near
from turnlog.agent.memories.similarity import similarity
from turnlog.agent.models.language import is_chinese

MOST_MERGED = 5
LEAST_SUMMARISED, MOST_SUMMARISED = 3, 20
RELATED = 0.5  # calibrated similarity of memories about one thing; 99 % of unrelated texts are below (similarity.py)
MOST_TOKENS = 1_500  # of a group's contents
FAINT_AT_ONCE = 2_000  # the faintest ones of a kind that are grouped in one run
MOST_OF_ENTITY = 200  # memories about one entity that are compared with each other in one run
Method = Literal["merge", "summary"]
Rivals = Callable[[Compactable, Compactable], bool]


@dataclass(frozen=True, slots=True)
class Joint:
    """Members that are to become one, in the order in which they were said. similarity: the least in a merge."""

    method: Method
    members: tuple[Compactable, ...]
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What may be joined: not touched since `before`; for a merge at least so similar, for a summary less important
    than `below`."""

    before: datetime
    similarity: float
    below: float

    def takes(self, one: Compactable) -> bool:
        plain = one.origin in ("rule", "llm") and one.dedupe_key is None and one.expires_at is None
        return plain and one.has_evidence and one.touched_at <= self.before

    def is_faint(self, one: Compactable) -> bool:
        return self.takes(one) and one.importance < self.below


@dataclass(frozen=True, slots=True)
class _Relations:
    """How strongly memories are related, by their numbers. rivals: whether two may not be in one group."""

    memories: Sequence[Compactable]
    strength: Mapping[int, Mapping[int, float]]
    rivals: Rivals
    count: Callable[[str], int]

    def group(self, first: int, taken: Collection[int], most: int) -> list[int]:
        """The memory with those most related to it that are free, at odds with none, and short enough together."""
        found, tokens = [first], self.count(self.memories[first].content)
        for other in sorted(self.strength[first], key=lambda n: (-self.strength[first][n], n)):
            one = self.memories[other]
            if other in taken or any(self.rivals(one, self.memories[n]) for n in found):
                continue
            tokens += self.count(one.content)
            if len(found) == most or tokens > MOST_TOKENS:
                break
            found.append(other)
        return found


def merges(
    memories: Sequence[Compactable],
    near: Iterable[Near],
    model: str,
    scope: Scope,
    count: Callable[[str], int],
    apart: Sequence[frozenset[UUID]] = (),
) -> list[Joint]:
    """Groups of memories of one kind that are nearly alike and may not contradict; near: raw cosines of the model."""
    sets = Apart(apart)

    def rivals(one: Compactable, other: Compactable) -> bool:
        return sets.hold(one.id, other.id) or may_contradict(one.content, other.content)

    alike = _alike(memories, near, model, scope.takes, lambda likeness: scope.similarity <= likeness <= SAME)
    relations = _Relations(memories, alike, rivals, count)
    joints: list[Joint] = []
    taken = set[int]()
    for number in sorted(alike, key=lambda n: (-memories[n].importance, _said(memories[n]))):
        group = [] if number in taken else relations.group(number, taken, MOST_MERGED)
        if len(group) > 1:
            taken.update(group)
            least = min(alike[number][other] for other in group[1:])
            joints.append(Joint("merge", _in_order(memories, group), round(least, 4)))
    return joints


def faint_ones(memories: Sequence[Compactable], scope: Scope, left_out: Collection[UUID] = ()) -> list[int]:
    """Numbers of the memories that may be summarised, the faintest FAINT_AT_ONCE of them, in ascending order."""
    found = [n for n, one in enumerate(memories) if scope.is_faint(one) and one.id not in left_out]
    return sorted(sorted(found, key=lambda n: memories[n].importance)[:FAINT_AT_ONCE])


def summaries(
    faint: Sequence[Compactable],
    near: Iterable[Near],
    model: str,
    scope: Scope,
    count: Callable[[str], int],
    apart: Sequence[frozenset[UUID]] = (),
) -> list[Joint]:
    """Groups of at least three memories of one kind about one entity, or about nearly the same; the faintest first."""
    sets = Apart(apart)

    def rivals(one: Compactable, other: Compactable) -> bool:
        """Not what differs: "likes tea" and "likes coffee" hold side by side, and a summary may say so."""
        return sets.hold(one.id, other.id)

    related = _alike(faint, near, model, scope.is_faint, lambda likeness: likeness >= RELATED)
    _add_entities(related, faint)
    relations = _Relations(faint, related, rivals, count)
    joints: list[Joint] = []
    taken = set[int]()
    for number in sorted(related, key=lambda n: (faint[n].importance, _said(faint[n]))):
        group = [] if number in taken else relations.group(number, taken, MOST_SUMMARISED)
        if len(group) >= LEAST_SUMMARISED:
            taken.update(group)
            joints.append(Joint("summary", _in_order(faint, group)))
    return joints


def _alike(
    memories: Sequence[Compactable],
    near: Iterable[Near],
    model: str,
    takes: Callable[[Compactable], bool],
    wanted: Callable[[float], bool],
) -> defaultdict[int, dict[int, float]]:
    """By number, the numbers of those that it may be joined with and how alike they are."""
    found: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for pair in near:
        first, second = memories[pair.first], memories[pair.second]
        if not (takes(first) and takes(second) and _may_meet(first, second)):
            continue
        likeness = similarity(model, pair.cosine, first.content, second.content)
        if wanted(likeness):
            found[pair.first][pair.second] = found[pair.second][pair.first] = likeness
    return found


def _add_entities(related: defaultdict[int, dict[int, float]], memories: Sequence[Compactable]) -> None:
    """Each entity that two share makes them stronger related than any likeness does."""
    about = defaultdict[str, list[int]](list)
    for number, one in enumerate(memories):
        for name in one.entities:
            about[name].append(number)
    for members in about.values():
        for first, second in combinations(members[:MOST_OF_ENTITY], 2):
            if _may_meet(memories[first], memories[second]):
                strength = related[first].get(second, 0.0) + 1.0
                related[first][second] = related[second][first] = strength


def _may_meet(first: Compactable, second: Compactable) -> bool:
    """A text has one kind and one language."""
    return first.kind == second.kind and is_chinese(first.content) == is_chinese(second.content)


def _in_order(memories: Sequence[Compactable], numbers: Iterable[int]) -> tuple[Compactable, ...]:
    return tuple(sorted((memories[n] for n in numbers), key=_said))


def _said(one: Compactable) -> tuple[datetime, int, str]:
    return (one.valid_from, one.seq, str(one.id))
