"""Converts decided events to the outcome that the caller of `remember` gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from turnlog.agent.memory.deciding.conflicts import decide
from turnlog.agent.memory.deciding.memory_state import MemoryState
from turnlog.agent.memory.deciding.writing import MemoryWriter, Place, Rows, utc_now
from turnlog.events.contracts import EventData, Memory, MemoryConfirmed, MemoryConflictRaised, MemoryRecorded
from turnlog.projectors.models.memories.lookup import StoredMemory, memories_with_keys
from turnlog.projectors.models.memories.text import content_key


async def matching_rows(rows: Rows, candidates: Sequence[Memory]) -> list[StoredMemory]:
    return await memories_with_keys(
        rows.conn,
        rows.place.tenant,
        rows.place.thread,
        [candidate.dedupe_key for candidate in candidates if candidate.dedupe_key is not None],
        [content_key(candidate.kind, candidate.content) for candidate in candidates],
        [candidate.id for candidate in candidates],
    )


What = Literal["recorded", "ended", "confirmed", "asked", "known"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one candidate. memory_id: of the memory that states the candidate's claim, its own or an earlier
    one.

    what: recorded (it is valid), ended (recorded and closed: replaced_by is valid in its place), confirmed (an earlier
    memory said it), asked (the user has to answer `question`), known (it was recorded already).
    """

    what: What
    memory_id: UUID
    replaced_by: UUID | None = None
    conflict_id: UUID | None = None
    question: str | None = None


def outcome(candidate: Memory, events: Sequence[EventData], known: MemoryState) -> Outcome:
    """Returns the outcome of a candidate. events: decided for it. known: the state after the events."""
    for data in events:
        match data:
            case MemoryConflictRaised(memory=memory) if memory.id == candidate.id:
                return Outcome("asked", candidate.id, conflict_id=data.conflict_id, question=data.question)
            case MemoryRecorded(memory=memory) if memory.id == candidate.id:
                row = known.rows[candidate.id]
                return Outcome("recorded" if row.valid_to is None else "ended", candidate.id, row.replaced_by)
            case MemoryConfirmed(memory_id=memory_id):
                return Outcome("confirmed", memory_id)
    return Outcome("known", _stated_by(candidate, known))


def _stated_by(candidate: Memory, known: MemoryState) -> UUID:
    rows = [row for row in known.matching(candidate) if row.status in ("valid", "archived", "pending")]
    return candidate.id if candidate.id in known.rows or not rows else rows[-1].id


async def preview(writer: MemoryWriter, place: Place, candidates: Sequence[Memory]) -> list[Outcome]:
    """Returns the outcome of each candidate without writing anything; later candidates are decided as if the earlier
    ones were stored.

    Raises the errors of MemoryWriter.read.
    """

    async def decide_all(rows: Rows) -> list[Outcome]:
        known = MemoryState(place, await matching_rows(rows, candidates), utc_now())
        outcomes: list[Outcome] = []
        for candidate in candidates:
            decided = () if candidate.id in known.rows else decide(candidate, known.matching(candidate))
            known.apply(decided)
            outcomes.append(outcome(candidate, decided, known))
        return outcomes

    return await writer.read(place, decide_all)
