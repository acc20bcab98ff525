"""What became of a candidate, for who asked to remember it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from turnlog.agent.memories.known import Known
from turnlog.events.contracts import EventData
from turnlog.events.memory_contracts import Memory, MemoryConfirmed, MemoryConflictRaised, MemoryRecorded

What = Literal["recorded", "ended", "confirmed", "asked", "known"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """memory_id: of the memory that has the candidate's words now; its own, or of who said them before.

    what: recorded (it holds), ended (recorded, but something else holds in its place: replaced_by), confirmed (said
    before), asked (question: the user has to say which one holds), known (nothing new: it was recorded already).
    """

    what: What
    memory_id: UUID
    replaced_by: UUID | None = None
    conflict_id: UUID | None = None
    question: str | None = None


def outcome(candidate: Memory, events: Sequence[EventData], known: Known) -> Outcome:
    """known: with the events applied."""
    for data in events:
        match data:
            case MemoryConflictRaised(memory=memory) if memory.id == candidate.id:
                return Outcome("asked", candidate.id, conflict_id=data.conflict_id, question=data.question)
            case MemoryRecorded(memory=memory) if memory.id == candidate.id:
                row = known.rows[candidate.id]
                return Outcome("recorded" if row.valid_to is None else "ended", candidate.id, row.replaced_by)
            case MemoryConfirmed(memory_id=memory_id):
                return Outcome("confirmed", memory_id)
    return Outcome("known", _as_said(candidate, known))


def _as_said(candidate: Memory, known: Known) -> UUID:
    rows = [row for row in known.rivals(candidate) if row.status in ("valid", "archived", "pending")]
    return candidate.id if candidate.id in known.rows or not rows else rows[-1].id
