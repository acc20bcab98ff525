"""What goes with a memory that is to be forgotten: whatever holds its words (M9). Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from turnlog.events.memory_contracts import EndReason, Interval, MemoryConflictAnswered, MemoryForgotten
from turnlog.projectors.memory_lookup import Conflict, StoredMemory

_IN_USE = ("valid", "archived")
AT_ONCE = 500  # the log takes twice as many events in one write


@dataclass(frozen=True, slots=True)
class Forgetting:
    """reopened: memories that were merged with a forgotten one, and hold again as they were said."""

    ids: tuple[UUID, ...]
    reopened: tuple[UUID, ...]


def forgetting(memory_id: UUID, family: Sequence[StoredMemory]) -> Forgetting:
    """family: as memory_lookup.family gives it, with the memory itself.

    With it go its members and what an edit of it replaced, what it was merged into, and those with its words. The
    other members of such a merge said something else: they hold again if the merge did.
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


def together(plans: Iterable[Forgetting]) -> Forgetting:
    """One of several: those with the same words, said at other times."""
    every = list(plans)
    ids = tuple(dict.fromkeys(id_ for plan in every for id_ in plan.ids))
    reopened = dict.fromkeys(id_ for plan in every for id_ in plan.reopened if id_ not in ids)
    return Forgetting(ids, tuple(reopened))


def first_of(plan: Forgetting, memory_id: UUID, family: Iterable[StoredMemory]) -> Forgetting:
    """As much of a plan as one write takes. The memory itself comes last, with those that others lead to and with what
    holds again."""
    if len(plan.ids) <= AT_ONCE:
        return plan
    last = {memory_id, *(row.replaced_by for row in family)}
    first = tuple(id_ for id_ in plan.ids if id_ not in last)[:AT_ONCE]
    return Forgetting(first, ()) if first else plan


def told(plan: Forgetting, family: Iterable[StoredMemory]) -> list[MemoryForgotten]:
    """One event for each that goes, with the turns it was said in. family: of all of them.

    What was made of several has the sources of all: the turns of members that stay are not its own.
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


def settled(ids: Sequence[UUID], questions: Iterable[Conflict]) -> list[MemoryConflictAnswered]:
    """Open questions that nobody can answer any more: about what is forgotten, or against nothing else."""
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
    """What the memory was merged into, and that again, up to what holds."""
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
