"""Decides on a candidate memory: new, a repetition, or a conflict with stored memories. Pure.

Dedupe keys are compared first, then contents; similar contents are compared once the vector is there
(semantic_conflicts.py). A decision is a sequence of events to append in one batch. Nothing is deleted: a memory that
loses is closed and names the memory that replaces it.
"""

from collections.abc import Sequence

from turnlog.agent.memory.deciding.chains import only_ends
from turnlog.agent.memory.deciding.claims import value_of
from turnlog.agent.memory.deciding.strategies import RESOLVERS, Decision, Decisions, confirmed, recorded
from turnlog.events.contracts import Derivation, Interval, Memory, MemoryConflictRaised, MemoryRecorded
from turnlog.projectors.models.memories.lookup import StoredMemory
from turnlog.projectors.models.memories.text import content_key


def decide(candidate: Memory, held: Sequence[StoredMemory], derivation: Derivation | None = None) -> Decisions:
    """Returns the events for a candidate; () if it is already recorded from the same source, or if it could only end
    another memory and ends none.

    held: rows with the candidate's id, dedupe key or content key, in any status (`memories_with_keys`).
    """
    if _is_recorded(candidate, held):
        return ()
    decisions = _found(candidate, held)
    if only_ends(candidate.value) and not _ends_another(candidate, decisions):
        return ()
    return tuple(_with(derivation, event) for event in decisions)


def _found(candidate: Memory, held: Sequence[StoredMemory]) -> Decisions:
    resolve = RESOLVERS[candidate.strategy]
    keyed = [row for row in held if candidate.dedupe_key is not None and row.dedupe_key == candidate.dedupe_key]
    if keyed:
        return resolve(_with_value(candidate, keyed), keyed)
    key = content_key(candidate.kind, candidate.content)
    if same := [row for row in held if row.content_key == key and _may_stand_for(candidate, row)]:
        return _keep_one(candidate, same[0])
    return resolve(candidate, ())


def _ends_another(candidate: Memory, decisions: Decisions) -> bool:
    ended = (
        interval for event in decisions if not isinstance(event, MemoryConflictRaised) for interval in event.intervals
    )
    return any(interval.memory_id != candidate.id and interval.valid_to is not None for interval in ended)


def _is_recorded(candidate: Memory, rows: Sequence[StoredMemory]) -> bool:
    """Returns whether the memory itself is recorded already, or the same claim from at least the same source turns."""
    said = {source.event_id for source in candidate.sources}
    among = [row for row in rows if said and said <= {source.event_id for source in row.sources}]
    return any(row.id == candidate.id for row in rows) or any(_is_same(candidate, row) for row in among)


def _is_same(candidate: Memory, row: StoredMemory) -> bool:
    if row.content_key == content_key(candidate.kind, candidate.content):
        return True
    keyed = row.dedupe_key is not None and row.dedupe_key == candidate.dedupe_key
    return keyed and value_of(row.value, row.content) == value_of(candidate.value, candidate.content)


def _with_value(candidate: Memory, keyed: Sequence[StoredMemory]) -> Memory:
    """Returns the candidate with the value of a stored memory of equal content if only one of the two has a value (a
    rule extracts a value, a model does not)."""
    key = content_key(candidate.kind, candidate.content)
    for row in reversed(keyed):
        if row.content_key == key and row.value != candidate.value and None in (row.value, candidate.value):
            return candidate.model_copy(update={"value": row.value})
    return candidate


def _may_stand_for(candidate: Memory, row: StoredMemory) -> bool:
    """Returns whether the row was in use when the candidate was said and does not have a different key: different keys
    mean different claims even if the words are equal."""
    held = row.status in ("valid", "archived") and (row.expires_at is None or row.expires_at > candidate.valid_from)
    return held and (None in (row.dedupe_key, candidate.dedupe_key) or row.dedupe_key == candidate.dedupe_key)


def _keep_one(candidate: Memory, row: StoredMemory) -> Decisions:
    """Keeps the memory that has a dedupe key, because a newer claim can end it."""
    if candidate.dedupe_key is None or row.dedupe_key is not None:
        return confirmed(candidate, row)
    at = max(candidate.valid_from, row.valid_from)
    ended = Interval(memory_id=row.id, valid_to=at, replaced_by=candidate.id, reason="duplicate")
    return recorded([candidate], [ended])


def _with(derivation: Derivation | None, event: Decision) -> Decision:
    if isinstance(event, MemoryRecorded | MemoryConflictRaised) and derivation is not None:
        return event.model_copy(update={"derivation": derivation})
    return event
