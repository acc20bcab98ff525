"""Which memories to forget together with one: all that contain its content (M9). Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from turnlog.events.contracts import EndReason, Interval, MemoryConflictAnswered, MemoryForgotten
from turnlog.projectors.models.memories.lookup import Conflict, StoredMemory

_IN_USE = ("valid", "archived")
MAX_FORGOTTEN_PER_WRITE = 500  # half of what one append may hold


@dataclass(frozen=True, slots=True)
class Forgetting:
    """ids: memories to forget. reopened: members that were merged with a forgotten one, and become valid again."""

    ids: tuple[UUID, ...]
    reopened: tuple[UUID, ...]


def forgetting(memory_id: UUID, family: Sequence[StoredMemory]) -> Forgetting:
    """family: the memory and all that it is linked to, as `family` of the lookup returns them.

    Forgotten with it: its duplicates and merged members, what it was edited from, what it was merged into and the
    duplicates of that. The other members of such a merge are other claims: they become valid again if the merge was.
    """
    rows = {row.id: row for row in family}
    below = _members(family)
    into = _path(rows, memory_id)
    gone = _closure([memory_id], below, ("duplicate", "merged", "edited"))
    gone |= _closure(into, below, ("duplicate",))
    top = rows[into[-1]] if into else rows[memory_id]
    others = [row.id for merge in into for row in below[merge] if row.closed_reason == "merged" and row.id not in gone]
    in_order = tuple(row.id for row in family if row.id in gone and row.status != "forgotten")
    reopened = dict.fromkeys(id_ for id_ in others if rows[id_].status != "forgotten")
    return Forgetting(in_order, tuple(reopened) if top.status in _IN_USE else ())


def combined(plans: Iterable[Forgetting]) -> Forgetting:
    """Several plans as one: memories with equal content that were recorded at different times."""
    every = list(plans)
    ids = tuple(dict.fromkeys(id_ for plan in every for id_ in plan.ids))
    reopened = dict.fromkeys(id_ for plan in every for id_ in plan.reopened if id_ not in ids)
    return Forgetting(ids, tuple(reopened))


def first_write(plan: Forgetting, memory_id: UUID, family: Iterable[StoredMemory]) -> Forgetting:
    """The part of a plan that fits one write. The last part has the memory itself, what others were merged into, and
    the reopened memories."""
    if len(plan.ids) <= MAX_FORGOTTEN_PER_WRITE:
        return plan
    last = {memory_id, *(row.replaced_by for row in family)}
    first = tuple(id_ for id_ in plan.ids if id_ not in last)[:MAX_FORGOTTEN_PER_WRITE]
    return Forgetting(first, ()) if first else plan


def forgotten_events(plan: Forgetting, family: Iterable[StoredMemory]) -> list[MemoryForgotten]:
    """One event per forgotten memory, with its source turns. family: of all memories in the plan.

    A merged memory has the sources of all its members; turns of members that stay are not among its source turns.
    """
    rows = {row.id: row for row in family}
    members = [row for row in rows.values() if row.closed_reason == "merged" and row.replaced_by in plan.ids]
    made = {row.replaced_by for row in members}
    staying = {source.event_id for row in members if row.id not in plan.ids for source in row.sources}
    found: list[MemoryForgotten] = []
    for row in (rows[id_] for id_ in plan.ids):
        turns = dict.fromkeys(source.event_id for source in row.sources)
        own = tuple(turn for turn in turns if row.id not in made or turn not in staying)
        found.append(MemoryForgotten(memory_id=row.id, source_ids=own))
    return found


def closing_answers(ids: Sequence[UUID], questions: Iterable[Conflict]) -> list[MemoryConflictAnswered]:
    """Answers that close questions about forgotten memories, or against forgotten memories only."""
    found: list[MemoryConflictAnswered] = []
    for one in questions:
        if one.memory_id in ids:
            found.append(MemoryConflictAnswered(conflict_id=one.conflict_id, answer="old", intervals=()))
        elif set(one.against) <= set(ids):
            holds = (Interval(memory_id=one.memory_id),)
            found.append(MemoryConflictAnswered(conflict_id=one.conflict_id, answer="new", intervals=holds))
    return found


def _members(family: Iterable[StoredMemory]) -> defaultdict[UUID, list[StoredMemory]]:
    below: defaultdict[UUID, list[StoredMemory]] = defaultdict(list)
    for row in family:
        if row.replaced_by is not None:
            below[row.replaced_by].append(row)
    return below


def _path(rows: dict[UUID, StoredMemory], memory_id: UUID) -> list[UUID]:
    """The chain of memories that this one was merged into, up to the last one."""
    found: list[UUID] = []
    row: StoredMemory | None = rows[memory_id]
    while row is not None and row.replaced_by and row.closed_reason in ("duplicate", "merged"):
        if row.replaced_by in found or row.replaced_by not in rows:
            break
        found.append(row.replaced_by)
        row = rows[row.replaced_by]
    return found


def _closure(
    start: Iterable[UUID], below: defaultdict[UUID, list[StoredMemory]], reasons: Sequence[EndReason]
) -> set[UUID]:
    found, waiting = set[UUID](), list(start)
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += [row.id for row in below[one] if row.closed_reason in reasons]
    return found
