"""Compares a user's memories with those of another extractor, and builds the events that replace them. Pure.

A memory's id is derived from its source event and content, so the same finding of two extractors has the same id.
Changes by hand take precedence: a memory that a person wrote, edited, reverted, forgot or chose in answer to a question
is never part of a difference. Nothing is added with its dedupe key or with no other terms than it or, if it was edited,
reverted or forgotten and has no key, from its turns. Other paraphrases of a memory that was written without a key are
not recognised here: near duplicates are closed when their vectors are there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid5

from turnlog.agent.memory.deciding.chains import closed, memory_of
from turnlog.events.contracts import EventData, Interval, MemoriesRevised, MemoryRecorded, Origin
from turnlog.projectors.models.memories.lookup import StoredMemory
from turnlog.projectors.models.terms import terms

EXTRACTED: tuple[Origin, ...] = ("explicit", "rule", "llm")
BY_HAND = ("edited", "forgotten", "reverted", "merged", "duplicate", "expired")
Coverage = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between the memories of two extractors. added: found by the new one only. gone: found by the old
    one only. changed: pairs (old, new) with the same dedupe key, or if one has no key, of one kind from the same turn.
    kept: the number of memories that both found."""

    added: tuple[StoredMemory, ...]
    changed: tuple[tuple[StoredMemory, StoredMemory], ...]
    gone: tuple[StoredMemory, ...]
    kept: int

    @property
    def nothing(self) -> bool:
        return not (self.added or self.changed or self.gone)


def difference(real: Sequence[StoredMemory], shadow: Sequence[StoredMemory], coverage: Coverage) -> Difference:
    """Returns the difference between all rows of both memory threads, in any status.

    coverage: the last sequence that the new extractor has read, by (conversation, stage); only memories from turns up
    to it can be gone. Turns that also stated a forgotten memory are ignored, because the forgotten content is not
    known; so are those of a memory without a key that was edited or reverted. Nothing is added under a dedupe key if
    its valid memory comes from a turn that the new extractor has not read.
    """
    kept_by_hand = _kept_by_hand(real)
    by_hand = [
        (row.dedupe_key, set(terms(row.content)))
        for row in real
        if row.status == "valid" and (row.origin == "user" or row.id in kept_by_hand)
    ]
    turns_by_hand = _turns_by_hand(real, kept_by_hand)
    known = {row.id: row for row in real}
    held = {row.content_key for row in real if row.status == "valid"}
    excluded = {row.content_key for row in real if (row.status == "forgotten" or row.closed_reason in BY_HAND)}
    new = [row for row in shadow if row.status == "valid"]
    found_again = {row.id for row in new} | {
        row.id for row in real if row.content_key in {derived.content_key for derived in new}
    }
    asked = {row.id for row in shadow if row.status == "pending"}  # found, but only the user's answer made it valid
    gone = [
        row
        for row in real
        if _was_read(row, coverage)
        and row.id not in found_again | asked | kept_by_hand
        and not _is_of_a_turn(row, turns_by_hand)
    ]
    ended = {row.id for row in gone}
    settled = {row.dedupe_key for row in real if _is_single(row) and row.id not in found_again | ended}
    added = [
        row
        for row in new
        if _is_addable(row, known.get(row.id))
        and row.content_key not in held | excluded
        and not (_is_single(row) and row.dedupe_key in settled)
        and not _is_of_a_turn(row, turns_by_hand)
        and not _says_no_more(row, by_hand)
    ]
    changed = _pairs(gone, added)
    pairs = {row.id for pair in changed for row in pair}
    return Difference(
        added=tuple(row for row in added if row.id not in pairs),
        changed=tuple(changed),
        gone=tuple(row for row in gone if row.id not in pairs),
        kept=sum(row.status == "valid" and row.id in found_again for row in real),
    )


def replacement_events(
    changes: Difference, real: Iterable[StoredMemory], thread: str, now: datetime
) -> list[tuple[UUID, EventData]]:
    """Returns events with deterministic ids that replace the user's memories with those of the new extractor."""
    known = {row.id for row in real}
    ends = [closed(old.id, now, new.id, "rederived") for old, new in changes.changed]
    ends += [closed(old.id, now, None, "rederived") for old in changes.gone]
    events: list[tuple[UUID, EventData]] = [
        (uuid5(end.memory_id, f"{thread}/rederived/{now.isoformat()}"), MemoriesRevised(intervals=(end,)))
        for end in ends
    ]
    for row in (*(new for _, new in changes.changed), *changes.added):
        event: EventData = MemoryRecorded(memory=memory_of(row))
        if row.id in known:
            event = MemoriesRevised(intervals=(Interval(memory_id=row.id),))
        events.append((uuid5(row.id, f"{thread}/derived/{now.isoformat()}"), event))
    return events


def _kept_by_hand(rows: Iterable[StoredMemory]) -> set[UUID]:
    """Returns the ids of memories that a person reverted to: their own reason says so, or that of a memory that the
    revert closed (events of earlier versions have no reason for the memory itself)."""
    reverted = [row for row in rows if row.closed_reason == "reverted"]
    ids = {row.id if row.status == "valid" else row.replaced_by for row in reverted}
    return {id_ for id_ in ids if id_ is not None}


def _turns_by_hand(rows: Iterable[StoredMemory], kept: Collection[UUID]) -> set[UUID]:
    """Returns the event ids of turns with a memory without a dedupe key that a person edited, forgot, reverted to, or
    closed by a revert. Forgotten memories have no key."""
    decided = (
        row for row in rows if row.id in kept or row.replaced_by in kept or row.closed_reason in ("edited", "forgotten")
    )
    return {source.event_id for row in decided if row.dedupe_key is None for source in row.sources}


def _is_addable(row: StoredMemory, here: StoredMemory | None) -> bool:
    """Returns whether a memory is not recorded yet, or was closed in favour of a memory that may now be gone."""
    return here is None or (here.status == "closed" and here.closed_reason in ("superseded", "rejected", "rederived"))


def _says_no_more(row: StoredMemory, known: Sequence[tuple[str | None, set[str]]]) -> bool:
    """Returns whether all terms of a memory are terms of a known one. known: (dedupe key, terms) of each. Different
    dedupe keys mean different claims."""
    words = set(terms(row.content))
    return bool(words) and any(words <= others and None in (row.dedupe_key, key) for key, others in known)


def _was_read(row: StoredMemory, coverage: Coverage) -> bool:
    """Returns whether a memory is valid, was extracted, and comes only from turns that the new extractor has read in
    the same stage."""
    stage = "llm" if row.origin == "llm" else "rules"
    return (
        row.status == "valid"
        and row.origin in EXTRACTED
        and bool(row.sources)
        and all(source.seq <= coverage.get((source.thread, stage), 0) for source in row.sources)
    )


def _is_of_a_turn(row: StoredMemory, turns: Collection[UUID]) -> bool:
    return any(source.event_id in turns for source in row.sources)


def _is_single(row: StoredMemory) -> bool:
    """Returns whether a memory is the only valid one of its dedupe key."""
    return row.status == "valid" and row.dedupe_key is not None and row.strategy != "KEEP_BOTH"


def _pairs(gone: Sequence[StoredMemory], added: Sequence[StoredMemory]) -> list[tuple[StoredMemory, StoredMemory]]:
    """Returns pairs (old, new) of different findings about the same subject: with the same dedupe key, or if one has no
    key, of one kind from the same turn."""
    free = list(added)
    pairs: list[tuple[StoredMemory, StoredMemory]] = []
    for old in gone:
        new = next((row for row in free if _same_subject(old, row)), None)
        if new is not None:
            free.remove(new)
            pairs.append((old, new))
    return pairs


def _same_subject(old: StoredMemory, new: StoredMemory) -> bool:
    if old.dedupe_key is not None and new.dedupe_key is not None:
        return old.dedupe_key == new.dedupe_key
    said = {source.event_id for source in old.sources}
    return old.kind == new.kind and any(source.event_id in said for source in new.sources)
