"""Makes the events for a user's decisions about memories: answer a question, edit, revert, forget. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from turnlog.agent.memory.deciding.chains import closed, memory_of
from turnlog.events.contracts import (
    Answer,
    EndReason,
    Interval,
    MemoriesRevised,
    MemoryArchived,
    MemoryConflictAnswered,
    MemoryForgotten,
    MemoryRecorded,
)
from turnlog.events.errors import TurnlogError
from turnlog.projectors.models.memories.lookup import Conflict, StoredMemory

_IN_USE = ("valid", "archived")
MAX_FORGOTTEN_PER_WRITE = 500  # half of the limit of one append
_ONE_HOLDS = ("KEEP_LATEST", "KEEP_HIGHEST", "KEEP_OLDEST", "MERGE")


class MemoryNotInUse(TurnlogError):
    """A closed, forgotten or pending memory cannot be changed. If another memory replaced it, that one can be
    changed."""

    code = "memory-not-in-use"


class NothingToRevert(TurnlogError):
    """Only an earlier version can become valid again, and only if it was not forgotten and has not expired."""

    code = "nothing-to-revert"


class QuestionSettled(TurnlogError):
    """The question is closed: it was answered already, or its memory expired or was forgotten."""

    code = "question-settled"


def answered(question: Conflict, held: Sequence[StoredMemory], answer: Answer, now: datetime) -> MemoryConflictAnswered:
    """Returns the event that answers a question. held: rows of the question's memories, and rows with their dedupe key.
    Raises QuestionSettled.

    answer: "new" ends the stored memories at the time when the new one was said, "old" rejects the new one, "both"
    makes all valid. If the new memory has expired, only "old" is possible, which closes the question.
    """
    new = next((row for row in held if row.id == question.memory_id), None)
    if new is None or new.status != "pending":
        raise QuestionSettled(
            f"question {question.conflict_id} needs no answer: its memory is no longer waiting for one"
        )
    if answer != "old" and is_over(new, now):
        raise QuestionSettled(
            f"the new memory of question {question.conflict_id} has expired; answer 'old' to close the question"
        )
    rivals = [row for row in held if row.status in _IN_USE and (row.id in question.against or _same_key(row, new))]
    intervals = [Interval(memory_id=new.id)]
    if answer == "new":
        intervals += [closed(row.id, max(row.valid_from, new.valid_from), new.id, "superseded") for row in rivals]
    elif answer == "old":
        intervals = [closed(new.id, new.valid_from, rivals[0].id if rivals else None, "rejected")]
    return MemoryConflictAnswered(conflict_id=question.conflict_id, answer=answer, intervals=tuple(intervals))


def is_over(row: StoredMemory, now: datetime) -> bool:
    """Returns whether the memory has expired, even if the daily job has not closed it yet."""
    return row.expires_at is not None and row.expires_at <= now


def require_unexpired(row: StoredMemory, now: datetime) -> None:
    """Raises NothingToRevert if the time to live of the memory has ended."""
    if is_over(row, now):
        raise NothingToRevert(
            f"memory {row.id} cannot become valid again: it expired at {row.expires_at}; "
            "`turnlog remember` records it again"
        )


def _same_key(row: StoredMemory, other: StoredMemory) -> bool:
    return other.dedupe_key is not None and row.dedupe_key == other.dedupe_key


def edited(row: StoredMemory, memory_id: UUID, content: str, now: datetime) -> MemoryRecorded:
    """Returns the event that replaces a memory with an edited one, as if the user had said it now. Raises
    MemoryNotInUse.

    The sources of the replaced memory are dropped, because they are not evidence of the new content. Its entities are
    kept if the new content names them.
    """
    if row.status not in _IN_USE:
        holds = f"{row.replaced_by}, which replaced it" if row.replaced_by else "the valid version"
        raise MemoryNotInUse(f"memory {row.id} is {row.status} and cannot be edited; edit {holds}")
    ends = None if row.expires_at is None else now + (row.expires_at - row.confirmed_at)
    memory = memory_of(row)
    named = tuple(name for name in memory.entities if name.casefold() in content.casefold())
    memory = memory.model_copy(
        update={
            **{"id": memory_id, "content": content, "value": None, "origin": "user", "rule": None, "confidence": 1.0},
            **{"valid_from": now, "expires_at": ends, "sources": (), "entities": named},
        }
    )
    return MemoryRecorded(memory=memory, intervals=(closed(row.id, now, memory_id, "edited"),))


def archived(row: StoredMemory, reason: str) -> MemoryArchived | None:
    """Returns the event that archives a memory, or None if it is archived for this reason already. Raises
    MemoryNotInUse."""
    if row.status not in _IN_USE:
        raise MemoryNotInUse(f"memory {row.id} is {row.status} and cannot be archived; only a valid memory can")
    is_known = row.status == "archived" and row.archived_reason == reason
    return None if is_known else MemoryArchived(memory_id=row.id, reason=reason)


def reverted(memory_id: UUID, history: Sequence[StoredMemory]) -> MemoriesRevised:
    """Returns the event that makes an earlier version valid again, without end, and closes its replacements. If one of
    these is a merge by the compaction, its other members become valid again too.

    history: the memory's chain, as `history` of the lookup returns it. Raises NothingToRevert.
    """
    rows = {row.id: row for row in history}
    target = rows.get(memory_id)
    if target is None or target.status != "closed" or target.closed_reason == "expired":
        raise NothingToRevert(
            f"memory {memory_id} is not an earlier version that can become valid again; "
            "`turnlog memories show` lists them"
        )
    later = [row for row in _others(target, rows) if _overlaps(row, target)]
    return MemoriesRevised(
        intervals=(
            valid_again(memory_id),
            *(Interval(memory_id=row.id) for row in _beside(target, later, rows)),
            *(closed(row.id, max(row.valid_from, target.valid_from), memory_id, "reverted") for row in later),
        )
    )


def valid_again(memory_id: UUID) -> Interval:
    """Returns the interval of a memory that a person made valid again. Its reason protects the memory from
    rederivations."""
    return Interval(memory_id=memory_id, reason="reverted")


def _beside(target: StoredMemory, later: Sequence[StoredMemory], rows: dict[UUID, StoredMemory]) -> list[StoredMemory]:
    """Returns the other members of the merges that the revert closes; they are different claims, so they become valid
    again."""
    made = {row.id for row in later if row.origin == "compaction" and row.dedupe_key is None}
    members = [row for row in rows.values() if row.replaced_by in made and row.closed_reason == "merged"]
    return [row for row in members if row.id != target.id and row.status == "closed"]


def _others(target: StoredMemory, rows: dict[UUID, StoredMemory]) -> list[StoredMemory]:
    """Returns the memories that replaced the target, directly or through others, and all memories with its key if only
    one of them may be valid."""
    others: dict[UUID, StoredMemory] = {}
    row: StoredMemory | None = target
    while row is not None and row.replaced_by is not None and row.replaced_by not in others:
        if (row := rows.get(row.replaced_by)) is not None:
            others[row.id] = row
    if target.strategy in _ONE_HOLDS:
        others |= {row.id: row for row in rows.values() if _same_key(row, target)}
    return [row for row in others.values() if row.id != target.id]


def _overlaps(row: StoredMemory, target: StoredMemory) -> bool:
    """Returns whether the row is valid at any time from the target's valid_from on."""
    held = row.status in (*_IN_USE, "closed")
    return held and (row.valid_to is None or row.valid_to > max(row.valid_from, target.valid_from))


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The memories to forget together with one memory, because they contain its content.

    ids: memories to forget. reopened: members that were merged with a forgotten memory and become valid again.
    """

    ids: tuple[UUID, ...]
    reopened: tuple[UUID, ...]


def forgetting(memory_id: UUID, family: Sequence[StoredMemory]) -> Forgetting:
    """Returns the memories to forget. family: the memory and all memories linked to it, as `family` of the lookup
    returns them.

    These memories are forgotten together with the memory: its duplicates and merged members, the earlier versions that
    edits replaced, the memory that it was merged into, and duplicates of that memory. The other members of such a merge
    are different claims: they become valid again if the merged memory was in use.
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


def newer_version(memory_id: UUID, history: Sequence[StoredMemory]) -> UUID | None:
    """Returns the latest memory that replaced this one, directly or through others, and is not forgotten; None if there
    is none. history: the memory's chain, as `history` of the lookup returns it."""
    rows = {row.id: row for row in history}
    path = [memory_id]
    while (row := rows.get(path[-1])) is not None and row.replaced_by and row.replaced_by not in path:
        path.append(row.replaced_by)
    newer = [rows[id_] for id_ in path[1:] if id_ in rows]
    return next((row.id for row in reversed(newer) if row.status != "forgotten"), None)


def combined(plans: Iterable[Forgetting]) -> Forgetting:
    """Combines several plans: memories with equal content that were recorded at different times."""
    every = list(plans)
    ids = tuple(dict.fromkeys(id_ for plan in every for id_ in plan.ids))
    reopened = dict.fromkeys(id_ for plan in every for id_ in plan.reopened if id_ not in ids)
    return Forgetting(ids, tuple(reopened))


def first_write(plan: Forgetting, memory_id: UUID, family: Iterable[StoredMemory]) -> Forgetting:
    """Returns the part of a plan that fits into one write. The last part contains the memory itself, the memories that
    others were merged into, and the reopened memories."""
    if len(plan.ids) <= MAX_FORGOTTEN_PER_WRITE:
        return plan
    last = {memory_id, *(row.replaced_by for row in family)}
    first = tuple(id_ for id_ in plan.ids if id_ not in last)[:MAX_FORGOTTEN_PER_WRITE]
    return Forgetting(first, ()) if first else plan


def forgotten_events(plan: Forgetting, family: Iterable[StoredMemory]) -> list[MemoryForgotten]:
    """Returns one event per forgotten memory, with its source turns. family: the families of all memories in the plan.

    A merged memory has the sources of all its members; its event does not name turns of members that stay.
    """
    rows = {row.id: row for row in family}
    members = [row for row in rows.values() if row.closed_reason == "merged" and row.replaced_by in plan.ids]
    made = {row.replaced_by for row in members}
    staying = {source.event_id for row in members if row.id not in plan.ids for source in row.sources}
    forgotten_memories: list[MemoryForgotten] = []
    for row in (rows[id_] for id_ in plan.ids):
        turns = dict.fromkeys(source.event_id for source in row.sources)
        own = tuple(turn for turn in turns if row.id not in made or turn not in staying)
        forgotten_memories.append(MemoryForgotten(memory_id=row.id, source_ids=own))
    return forgotten_memories


def closing_answers(ids: Sequence[UUID], questions: Iterable[Conflict]) -> list[MemoryConflictAnswered]:
    """Returns the answers that close questions whose new memory is forgotten, or whose stored memories are all
    forgotten."""
    answers: list[MemoryConflictAnswered] = []
    for question in questions:
        if question.memory_id in ids:
            answers.append(MemoryConflictAnswered(conflict_id=question.conflict_id, answer="old", intervals=()))
        elif set(question.against) <= set(ids):
            holds = (Interval(memory_id=question.memory_id),)
            answers.append(MemoryConflictAnswered(conflict_id=question.conflict_id, answer="new", intervals=holds))
    return answers


def _members(family: Iterable[StoredMemory]) -> defaultdict[UUID, list[StoredMemory]]:
    below: defaultdict[UUID, list[StoredMemory]] = defaultdict(list)
    for row in family:
        if row.replaced_by is not None:
            below[row.replaced_by].append(row)
    return below


def _path(rows: dict[UUID, StoredMemory], memory_id: UUID) -> list[UUID]:
    """Returns the chain of memories that this one was merged into, up to the last one."""
    path: list[UUID] = []
    row: StoredMemory | None = rows[memory_id]
    while row is not None and row.replaced_by and row.closed_reason in ("duplicate", "merged"):
        if row.replaced_by in path or row.replaced_by not in rows:
            break
        path.append(row.replaced_by)
        row = rows[row.replaced_by]
    return path


def _closure(
    start: Iterable[UUID], below: defaultdict[UUID, list[StoredMemory]], reasons: Sequence[EndReason]
) -> set[UUID]:
    reached, waiting = set[UUID](), list(start)
    while waiting:
        if (memory_id := waiting.pop()) not in reached:
            reached.add(memory_id)
            waiting += [row.id for row in below[memory_id] if row.closed_reason in reasons]
    return reached
