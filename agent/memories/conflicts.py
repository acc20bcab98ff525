"""What becomes of a memory that is said: new, said before, or against what is held (M5, seed E 8.6). Pure.

Looked for in this order: the same dedupe key, the same words, words that are alike. A decision is the events to
append, together and in this order. Nothing is lost: who loses is closed and points to what holds instead.
"""

from collections.abc import Sequence

from turnlog.agent.memories.claims import same_claim, value_of
from turnlog.agent.memories.strategies import SETTLE, Decision, Decisions, confirmed, recorded
from turnlog.events.frozen import Derivation
from turnlog.events.memory_contracts import (
    Interval,
    Memory,
    MemoryConflictRaised,
    MemoryRecorded,
)
from turnlog.projectors.memory_lookup import StoredMemory
from turnlog.projectors.memory_text import content_key

Held = StoredMemory
ALIKE = 0.90


def decide(
    candidate: Memory,
    held: Sequence[Held],
    similar: Sequence[tuple[Held, float]] = (),
    derivation: Derivation | None = None,
) -> Decisions:
    """The events of a memory that was said; () when this very source is recorded already.

    held: every row with the candidate's id, dedupe key or content key, whatever its status (memory_lookup.rivals).
    similar: rows that an embedding finds alike, best first, with a similarity that is calibrated to 0 to 1.
    """
    if _is_recorded(candidate, [*held, *(row for row, _ in similar)]):
        return ()
    return tuple(_with(derivation, event) for event in _found(candidate, held, similar))


def _found(candidate: Memory, held: Sequence[Held], similar: Sequence[tuple[Held, float]]) -> Decisions:
    settle = SETTLE[candidate.strategy]
    keyed = [row for row in held if candidate.dedupe_key is not None and row.dedupe_key == candidate.dedupe_key]
    if keyed:
        return settle(_with_value(candidate, keyed), keyed)
    key = content_key(candidate.kind, candidate.content)
    if same := [row for row in held if row.content_key == key and _may_stand_for(candidate, row)]:
        return _one_stays(candidate, same[0])
    alike = [row for row, likeness in similar if likeness > ALIKE and _says_the_same(candidate, row)][:1]
    if any(None in (row.dedupe_key, candidate.dedupe_key) and row.dedupe_key != candidate.dedupe_key for row in alike):
        return _one_stays(candidate, alike[0])
    return settle(candidate, alike)


def _is_recorded(candidate: Memory, rows: Sequence[Held]) -> bool:
    """This very memory, or the same claim from turns that are all its sources already."""
    said = {source.event_id for source in candidate.sources}
    among = [row for row in rows if said and said <= {source.event_id for source in row.sources}]
    return any(row.id == candidate.id for row in rows) or any(_is_same(candidate, row) for row in among)


def _is_same(candidate: Memory, row: Held) -> bool:
    if row.content_key == content_key(candidate.kind, candidate.content):
        return True
    keyed = row.dedupe_key is not None and row.dedupe_key == candidate.dedupe_key
    return keyed and value_of(row.value, row.content) == value_of(candidate.value, candidate.content)


def _with_value(candidate: Memory, keyed: Sequence[Held]) -> Memory:
    """Of two that say the same words under one key, a rule may have found a value and a model none: they agree."""
    key = content_key(candidate.kind, candidate.content)
    for row in reversed(keyed):
        if row.content_key == key and row.value != candidate.value and None in (row.value, candidate.value):
            return candidate.model_copy(update={"value": row.value})
    return candidate


def _may_stand_for(candidate: Memory, row: Held) -> bool:
    """In use when the candidate was said, and under no other key: keys know better than words what is meant."""
    held = row.status in ("valid", "archived") and (row.expires_at is None or row.expires_at > candidate.valid_from)
    return held and (None in (row.dedupe_key, candidate.dedupe_key) or row.dedupe_key == candidate.dedupe_key)


def _says_the_same(candidate: Memory, row: Held) -> bool:
    return row.kind == candidate.kind and _may_stand_for(candidate, row) and same_claim(candidate.content, row.content)


def _one_stays(candidate: Memory, row: Held) -> Decisions:
    """The one with a dedupe key stays, for it can be contradicted."""
    if candidate.dedupe_key is None or row.dedupe_key is not None:
        return confirmed(candidate, row)
    at = max(candidate.valid_from, row.valid_from)
    ended = Interval(memory_id=row.id, valid_to=at, replaced_by=candidate.id, reason="duplicate")
    return recorded([candidate], [ended])


def _with(derivation: Derivation | None, event: Decision) -> Decision:
    if isinstance(event, MemoryRecorded | MemoryConflictRaised) and derivation is not None:
        return event.model_copy(update={"derivation": derivation})
    return event
