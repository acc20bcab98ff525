"""Events for what a user decides about memories: answer a question, edit, revert to an earlier version (M5). Pure."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from turnlog.agent.memory.deciding.chains import closed, memory_of
from turnlog.events.contracts import (
    Answer,
    Interval,
    MemoriesRevised,
    MemoryArchived,
    MemoryConflictAnswered,
    MemoryRecorded,
)
from turnlog.events.errors import TurnlogError
from turnlog.projectors.models.memories.lookup import Conflict, StoredMemory

_IN_USE = ("valid", "archived")
_ONE_HOLDS = ("KEEP_LATEST", "KEEP_HIGHEST", "KEEP_OLDEST", "MERGE")


class MemoryNotInUse(TurnlogError):
    """A closed, forgotten or pending memory cannot be changed; the memory that replaced it can."""

    code = "memory-not-in-use"


class NothingToRevert(TurnlogError):
    """Only an earlier version can become valid again, and only if it was neither forgotten nor has expired."""

    code = "nothing-to-revert"


class QuestionSettled(TurnlogError):
    """The question is closed: it was answered before, or its memory expired or was forgotten."""

    code = "question-settled"


def answered(question: Conflict, held: Sequence[StoredMemory], answer: Answer, now: datetime) -> MemoryConflictAnswered:
    """held: rows of the question's memories and of their dedupe key. Raises QuestionSettled.

    answer "new": the stored memories end when the new one was said. "old": the new one is rejected. "both": all are
    valid. An expired memory can only be answered with "old", which closes the question.
    """
    new = next((row for row in held if row.id == question.memory_id), None)
    if new is None or new.status != "pending":
        raise QuestionSettled(f"question {question.conflict_id} needs no answer: its memory no longer waits for one")
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
    """Whether its time to live has ended, whether or not the daily job has closed it."""
    return row.expires_at is not None and row.expires_at <= now


def require_unexpired(row: StoredMemory, now: datetime) -> None:
    """Raises NothingToRevert."""
    if is_over(row, now):
        raise NothingToRevert(
            f"memory {row.id} cannot hold again: its time to live ended at {row.expires_at}; "
            "`turnlog remember` records it again"
        )


def _same_key(row: StoredMemory, other: StoredMemory) -> bool:
    return other.dedupe_key is not None and row.dedupe_key == other.dedupe_key


def edited(row: StoredMemory, memory_id: UUID, content: str, now: datetime) -> MemoryRecorded:
    """The event that replaces a memory by an edited one, said by the user now. Raises MemoryNotInUse.

    Sources of the replaced memory are not evidence of the new content.
    """
    _must_be_in_use(row)
    ends = None if row.expires_at is None else now + (row.expires_at - row.confirmed_at)
    memory = memory_of(row).model_copy(
        update={
            **{"id": memory_id, "content": content, "value": None, "origin": "user", "rule": None, "confidence": 1.0},
            **{"valid_from": now, "expires_at": ends, "sources": ()},
        }
    )
    return MemoryRecorded(memory=memory, intervals=(closed(row.id, now, memory_id, "edited"),))


def archived(row: StoredMemory, reason: str) -> MemoryArchived | None:
    """None when it is archived for this reason already. Raises MemoryNotInUse."""
    if row.status not in _IN_USE:
        raise MemoryNotInUse(f"memory {row.id} is {row.status} and cannot be archived; only one that holds can")
    is_known = row.status == "archived" and row.archived_reason == reason
    return None if is_known else MemoryArchived(memory_id=row.id, reason=reason)


def reverted(memory_id: UUID, history: Sequence[StoredMemory]) -> MemoriesRevised:
    """The event that makes an earlier version valid again, without end, and closes what replaced it.

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
            Interval(memory_id=memory_id),
            *(Interval(memory_id=row.id) for row in _beside(target, later, rows)),
            *(closed(row.id, max(row.valid_from, target.valid_from), memory_id, "reverted") for row in later),
        )
    )


def _beside(target: StoredMemory, later: Sequence[StoredMemory], rows: dict[UUID, StoredMemory]) -> list[StoredMemory]:
    """Members of merges that the revert closes: they are other claims and become valid again."""
    made = {row.id for row in later if row.origin == "compaction" and row.dedupe_key is None}
    members = [row for row in rows.values() if row.replaced_by in made and row.closed_reason == "merged"]
    return [row for row in members if row.id != target.id and row.status == "closed"]


def _others(target: StoredMemory, rows: dict[UUID, StoredMemory]) -> list[StoredMemory]:
    """What replaced it, directly or in turn, and all memories of its key where only one may be valid."""
    found: dict[UUID, StoredMemory] = {}
    row: StoredMemory | None = target
    while row is not None and row.replaced_by is not None and row.replaced_by not in found:
        if (row := rows.get(row.replaced_by)) is not None:
            found[row.id] = row
    if target.strategy in _ONE_HOLDS:
        found |= {row.id: row for row in rows.values() if _same_key(row, target)}
    return [row for row in found.values() if row.id != target.id]


def _overlaps(row: StoredMemory, target: StoredMemory) -> bool:
    """Whether it is valid at any time from the target's valid_from on."""
    held = row.status in (*_IN_USE, "closed")
    return held and (row.valid_to is None or row.valid_to > max(row.valid_from, target.valid_from))


def _must_be_in_use(row: StoredMemory) -> None:
    if row.status not in _IN_USE:
        raise MemoryNotInUse(f"memory {row.id} is {row.status} and cannot be edited; edit the one that holds instead")
