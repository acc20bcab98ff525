"""What another extractor would remember, beside what is remembered: the difference, and how to take it over. Pure.

A memory's id follows from the event and the words it was made of, so that the same find of two extractors is the same
memory. What people did by hand counts for more than any extractor: what they wrote, edited, reverted or had forgotten
is never in a difference, and other words for it do not bring it back either.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid5

from turnlog.agent.memories.chains import closed, memory_of
from turnlog.events.contracts import EventData
from turnlog.events.memory_contracts import Interval, MemoriesRevised, MemoryRecorded, Origin
from turnlog.projectors.memory_lookup import StoredMemory

EXTRACTED: tuple[Origin, ...] = ("explicit", "rule", "llm")
BY_HAND = ("edited", "forgotten", "reverted", "merged", "duplicate", "expired")
Looked = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Difference:
    """added: only the new extractor has them. gone: only the old one. changed: (old, new) from the same words.

    kept: both have them.
    """

    added: tuple[StoredMemory, ...]
    changed: tuple[tuple[StoredMemory, StoredMemory], ...]
    gone: tuple[StoredMemory, ...]
    kept: int

    @property
    def nothing(self) -> bool:
        return not (self.added or self.changed or self.gone)


def difference(real: Sequence[StoredMemory], shadow: Sequence[StoredMemory], looked: Looked) -> Difference:
    """real, shadow: all rows of both memory threads, in any status.

    looked: up to which sequence the new extractor has looked at a conversation in a stage: only what came from there
    can be gone. A turn of which something was forgotten is left as it is, for the words of the forgotten are not known
    any more; and where something holds that the new extractor did not look for, nothing comes beside it.
    """
    silent = {source.event_id for row in real if row.status == "forgotten" for source in row.sources}
    known = {row.id: row for row in real}
    held = {row.content_key for row in real if row.status == "valid"}
    barred = {row.content_key for row in real if _is_by_hand(row)}
    new = [row for row in shadow if row.status == "valid"]
    found_again = {row.id for row in new} | {
        row.id for row in real if row.content_key in {one.content_key for one in new}
    }
    gone = [
        row
        for row in real
        if _was_looked_for(row, looked) and row.id not in found_again and not _is_of_a_turn(row, silent)
    ]
    ended = {row.id for row in gone}
    settled = {row.dedupe_key for row in real if _is_alone(row) and row.id not in found_again | ended}
    added = [
        row
        for row in new
        if _is_news(row, known.get(row.id))
        and row.content_key not in held | barred
        and not (_is_alone(row) and row.dedupe_key in settled)
        and not _is_of_a_turn(row, silent)
    ]
    changed = _pairs(gone, added)
    pairs = {row.id for pair in changed for row in pair}
    return Difference(
        added=tuple(row for row in added if row.id not in pairs),
        changed=tuple(changed),
        gone=tuple(row for row in gone if row.id not in pairs),
        kept=sum(row.status == "valid" and row.id in found_again for row in real),
    )


def taken_over(
    found: Difference, real: Iterable[StoredMemory], thread: str, now: datetime
) -> list[tuple[UUID, EventData]]:
    """Events, by ids that follow from them, after which the user's memories are the new extractor's."""
    known = {row.id for row in real}
    ends = [closed(old.id, now, new.id, "rederived") for old, new in found.changed]
    ends += [closed(old.id, now, None, "rederived") for old in found.gone]
    events: list[tuple[UUID, EventData]] = [
        (uuid5(end.memory_id, f"{thread}/rederived/{now.isoformat()}"), MemoriesRevised(intervals=(end,)))
        for end in ends
    ]
    for row in (*(new for _, new in found.changed), *found.added):
        told: EventData = MemoryRecorded(memory=memory_of(row))
        if row.id in known:
            told = MemoriesRevised(intervals=(Interval(memory_id=row.id),))
        events.append((uuid5(row.id, f"{thread}/derived/{now.isoformat()}"), told))
    return events


def _is_by_hand(row: StoredMemory) -> bool:
    return row.status == "forgotten" or row.closed_reason in BY_HAND


def _is_news(row: StoredMemory, here: StoredMemory | None) -> bool:
    """Not there, or ended for another find that is perhaps gone now."""
    return here is None or (here.status == "closed" and here.closed_reason in ("superseded", "rejected", "rederived"))


def _was_looked_for(row: StoredMemory, looked: Looked) -> bool:
    """Valid, made by an extractor, and only of turns that the new one has looked at in the same way."""
    stage = "llm" if row.origin == "llm" else "rules"
    return (
        row.status == "valid"
        and row.origin in EXTRACTED
        and bool(row.sources)
        and all(source.seq <= looked.get((source.thread, stage), 0) for source in row.sources)
    )


def _is_of_a_turn(row: StoredMemory, turns: Collection[UUID]) -> bool:
    return any(source.event_id in turns for source in row.sources)


def _is_alone(row: StoredMemory) -> bool:
    """No other one of its key holds beside it."""
    return row.status == "valid" and row.dedupe_key is not None and row.strategy != "KEEP_BOTH"


def _pairs(gone: Sequence[StoredMemory], added: Sequence[StoredMemory]) -> list[tuple[StoredMemory, StoredMemory]]:
    """What one extractor made of the words of which the other made something else."""
    free = list(added)
    pairs: list[tuple[StoredMemory, StoredMemory]] = []
    for old in gone:
        new = next((row for row in free if _same_matter(old, row)), None)
        if new is not None:
            free.remove(new)
            pairs.append((old, new))
    return pairs


def _same_matter(old: StoredMemory, new: StoredMemory) -> bool:
    if old.dedupe_key is not None and new.dedupe_key is not None:
        return old.dedupe_key == new.dedupe_key
    said = {source.event_id for source in old.sources}
    return old.kind == new.kind and any(source.event_id in said for source in new.sources)
