"""Groups duplicate memories, and builds the events that close duplicates or undo a compaction.

`duplicate_groups` is pure: it takes memories and near pairs and returns groups. One memory of a group, if possible one
with a dedupe key, otherwise the most important one, stays valid and replaces the others, which are closed; nothing is
deleted, so that a compaction can be undone. Similarity is not transitive here: a memory belongs to a group only if it
is similar to the memory that stays.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid5

from turnlog.agent.memory.deciding.chains import closed, lasts_as_long
from turnlog.agent.memory.deciding.claims import same_claim
from turnlog.agent.memory.deciding.similarity import similarity
from turnlog.agent.memory.deciding.writing import Decided, MemoryWriter, Place, Rows
from turnlog.agent.memory.upkeep.near_vectors import NearPair
from turnlog.events.contracts import CompactionUndone, Interval, MemoriesCompacted, Origin
from turnlog.events.errors import NotFound
from turnlog.projectors.models.memories.lookup import memories_by_id
from turnlog.projectors.models.memories.vectors import compactions

DUPLICATE_SIMILARITY = 0.92  # calibrated; above it two memories that make the same claim are duplicates


@dataclass(frozen=True, slots=True)
class Compactable:
    """A valid memory that may be compacted. importance: its current importance, after decay.

    touched_at: the time when it was last said, recorded, rated or read. has_evidence: it has at least one source turn.
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
class DuplicateGroup:
    """Memories with the same meaning. kept: the memory that stays valid and replaces the duplicates. similarity: the
    lowest similarity of a duplicate to `kept`."""

    kept: Compactable
    duplicates: tuple[Compactable, ...]
    similarity: float

    @property
    def members(self) -> tuple[Compactable, ...]:
        return (self.kept, *self.duplicates)


class Separated:
    """Sets of memories. Two members of one set are never merged."""

    def __init__(self, sets: Sequence[frozenset[UUID]]) -> None:
        self._sets_of: defaultdict[UUID, set[int]] = defaultdict(set)
        for number, members in enumerate(sets):
            for member in members:
                self._sets_of[member].add(number)

    def contain(self, first: UUID, second: UUID) -> bool:
        """Returns whether one of the sets contains both memories."""
        return not self._sets_of.get(first, set()).isdisjoint(self._sets_of.get(second, ()))


def duplicate_groups(
    memories: Sequence[Compactable], near: Iterable[NearPair], model: str, separated: Sequence[frozenset[UUID]] = ()
) -> list[DuplicateGroup]:
    """Returns groups of duplicates. near: pairs of indexes into `memories`, with raw cosines of the model.

    separated: the members of each compaction that was undone or that made a new memory; two members of one set are not
    merged.
    """
    sets = Separated(separated)

    def fits(first: Compactable, second: Compactable, value: float) -> bool:
        above = value > DUPLICATE_SIMILARITY and _may_be_duplicates(first, second)
        return above and not sets.contain(first.id, second.id)

    pairs = similar_pairs(memories, near, model, fits)
    taken = set[int]()
    groups: list[DuplicateGroup] = []
    for number in sorted(pairs, key=lambda n: _rank(memories[n])):
        others = [other for other in pairs[number] if other not in taken]
        if number in taken or not others:
            continue
        taken |= {number, *others}
        lowest = min(pairs[number][other] for other in others)
        ordered = sorted((memories[other] for other in others), key=_rank)
        groups.append(DuplicateGroup(memories[number], tuple(ordered), round(lowest, 4)))
    return groups


def dedupe_event(group: DuplicateGroup) -> MemoriesCompacted:
    return MemoriesCompacted(
        method="dedupe",
        members=tuple(member.id for member in group.members),
        kept=group.kept.id,
        intervals=tuple(
            closed(duplicate.id, max(duplicate.valid_from, group.kept.valid_from), group.kept.id, "duplicate")
            for duplicate in group.duplicates
        ),
        similarity=group.similarity,
    )


def reopened_intervals(
    members: Iterable[UUID], replaced_by: Mapping[UUID, UUID | None], into: UUID
) -> tuple[Interval, ...]:
    """Returns open intervals for the members of an undone compaction that are still closed for `into`."""
    return tuple(Interval(memory_id=member) for member in members if replaced_by.get(member) == into)


def similar_pairs(
    memories: Sequence[Compactable],
    near: Iterable[NearPair],
    model: str,
    fits: Callable[[Compactable, Compactable, float], bool],
) -> defaultdict[int, dict[int, float]]:
    """Returns similarities: result[a][b] is the calibrated similarity of memories a and b, for pairs that `fits`
    accepts. The result is symmetric."""
    similarities: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for pair in near:
        first, second = memories[pair.first], memories[pair.second]
        value = similarity(model, pair.cosine, first.content, second.content)
        if fits(first, second, value):
            similarities[pair.first][pair.second] = similarities[pair.second][pair.first] = value
    return similarities


def _may_be_duplicates(first: Compactable, second: Compactable) -> bool:
    """Returns whether two memories may be duplicates. Dedupe keys decide without a comparison: different keys mean
    different claims, equal keys were resolved when the memories were recorded."""
    return (
        first.kind == second.kind
        and None in (first.dedupe_key, second.dedupe_key)
        and same_claim(first.content, second.content)
        and lasts_as_long(*(memory.expires_at for memory in sorted((first, second), key=_rank)))
    )


def _rank(memory: Compactable) -> tuple[bool, float, datetime, int]:
    """Returns a sort key, lowest first: memories with a dedupe key (which a newer claim can end), then more important
    ones, then older ones."""
    return (memory.dedupe_key is None, -memory.importance, memory.valid_from, memory.seq)


async def undo_compaction(writer: MemoryWriter, place: Place, event_id: UUID) -> list[UUID]:
    """Makes the members of a compaction valid again and returns their ids; [] when it is undone already.

    The job will not merge them again. A member that has changed for another reason (it was forgotten, for example)
    stays as it is. Raises NotFound.
    """

    async def decide(rows: Rows) -> Decided[list[UUID]]:
        known = await compactions(rows.conn, place.tenant, place.thread, event_id)
        if not known:
            raise NotFound(f"user {place.user!r} has no compaction {event_id}; `turnlog compactions` lists them")
        [compaction] = known
        into = compaction.made or compaction.kept
        if compaction.undone or into is None:
            return Decided([], [])
        family = await memories_by_id(rows.conn, place.tenant, place.thread, [*compaction.members, into])
        ended = {id_: row.replaced_by for id_, row in family.items() if row.status != "forgotten"}
        intervals = reopened_intervals(compaction.members, ended, into)
        made = compaction.made if compaction.made in ended else None
        data = CompactionUndone(compaction_id=event_id, made=made, intervals=intervals)
        return Decided([(uuid5(event_id, "undone"), data)], [interval.memory_id for interval in intervals])

    return await writer.write(place, decide)
