"""The six conflict strategies: each turns a candidate and its conflicting rows into events. Pure.

KEEP_LATEST, KEEP_OLDEST, KEEP_HIGHEST and MERGE recompute all intervals and write the differences, so that the result
does not depend on the order of arrival.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import NAMESPACE_URL, UUID, uuid5

from turnlog.agent.memory.deciding.chains import (
    Link,
    Wins,
    changes,
    closed,
    highest,
    in_order,
    is_denial,
    latest,
    layout,
    link_of,
    links_of,
    memory_of,
    oldest,
)
from turnlog.agent.memory.deciding.claims import value_of
from turnlog.agent.memory.deciding.merge_strategy import is_merge, merging
from turnlog.events.contracts import (
    Interval,
    MemoriesRevised,
    Memory,
    MemoryConfirmed,
    MemoryConflictRaised,
    MemoryRecorded,
    Strategy,
)
from turnlog.projectors.models.memories.lookup import StoredMemory

Decision = MemoryRecorded | MemoryConfirmed | MemoryConflictRaised | MemoriesRevised
Decisions = tuple[Decision, ...]
Resolve = Callable[[Memory, Sequence[StoredMemory]], Decisions]
_CONFLICTS = uuid5(NAMESPACE_URL, "turnlog/memory-conflict")


def confirmed(candidate: Memory, row: StoredMemory, intervals: Iterable[Interval] = ()) -> Decisions:
    """Returns one event for each new source. A repetition also makes an archived memory valid again; without a new
    source, this is a MemoriesRevised."""
    changed = tuple(intervals)
    if row.status == "archived" and all(interval.memory_id != row.id for interval in changed):
        changed = (Interval(memory_id=row.id), *changed)
    known = {(source.event_id, source.quote) for source in row.sources}
    new = [source for source in candidate.sources if (source.event_id, source.quote) not in known]
    if not new:
        return (MemoriesRevised(intervals=changed),) if changed else ()
    importance, confidence = max(row.importance, candidate.importance), max(row.confidence, candidate.confidence)
    return tuple(
        MemoryConfirmed(
            memory_id=row.id,
            source=source,
            importance=importance,
            confidence=confidence,
            intervals=changed if n == 0 else (),
        )
        for n, source in enumerate(new)
    )


def recorded(memories: Sequence[Memory], intervals: Iterable[Interval] = ()) -> Decisions:
    """Returns the events of new memories, each with its own interval; intervals of other memories are in the first
    event."""
    ids, by_id = {memory.id for memory in memories}, {interval.memory_id: interval for interval in intervals}
    others = tuple(interval for id_, interval in by_id.items() if id_ not in ids)
    return tuple(
        MemoryRecorded(
            memory=memory,
            intervals=(*((by_id[memory.id],) if memory.id in by_id else ()), *(others if n == 0 else ())),
        )
        for n, memory in enumerate(memories)
    )


def _keep_latest(candidate: Memory, rows: Sequence[StoredMemory]) -> Decisions:
    """Resolves by the time of each statement: a repetition right before or after a memory with the same value confirms
    it; a value said within the interval of another splits that interval."""
    links, new = links_of(rows), link_of(candidate)
    counting = [link for link in links if link.present is None or link.present.reason != "rejected"]
    before, after, after_at = _neighbours(counting, new)
    if before and before.value == new.value and not before.ended(new.begin):
        return _again(candidate, before, links, rows, latest)
    if after and after_at and after.value == new.value and not new.ended(after_at):
        return _again(candidate, after, links, rows, latest)
    if before and after_at and before is after and latest(new, before):
        return _split(candidate, before, after_at, links, rows)
    return recorded([candidate], changes(layout([*links, new], latest), rows))


def _neighbours(links: Sequence[Link], new: Link) -> tuple[Link | None, Link | None, datetime | None]:
    """Returns the last memory said before a new one, the first one said after it, and the time of the latter; ties are
    ordered by value."""
    sayings = sorted(((at, link.value, str(link.id)), link) for link in links for at in link.said)
    position = (new.begin, new.value, str(new.id))
    before = next((link for key, link in reversed(sayings) if key <= position), None)
    after = next(((link, key[0]) for key, link in sayings if key > position), (None, None))
    return before, *after


def _split(
    candidate: Memory, around: Link, at: datetime, links: Sequence[Link], rows: Sequence[StoredMemory]
) -> Decisions:
    """Splits a memory around the candidate: its sources from `at` on become a separate memory."""
    row = _row(around, rows)
    own = [source for source in row.sources if source.said_at in around.said and source.said_at >= at]
    sources = tuple(sorted(own, key=lambda source: source.said_at))
    rest = memory_of(row).model_copy(
        update={"id": uuid5(row.id, str(sources[0].event_id)), "sources": sources, "valid_from": at}
    )
    chain = [*links, link_of(candidate), link_of(rest)]
    return recorded([candidate, rest], changes(layout(chain, latest), rows))


def _keep_by(wins: Wins) -> Resolve:
    """Returns a strategy that keeps one memory per value, from the time when it was first said; later repetitions do
    not change intervals."""

    def resolve(candidate: Memory, rows: Sequence[StoredMemory]) -> Decisions:
        links, new = links_of(rows), link_of(candidate)
        if same := _same_value(links, new):
            return _again(candidate, same, links, rows, wins)
        return recorded([candidate], changes(layout([*links, new], wins), rows))

    return resolve


def _again(candidate: Memory, link: Link, links: Sequence[Link], rows: Sequence[StoredMemory], wins: Wins) -> Decisions:
    """Confirms a memory; if the candidate was said before the memory begins, the memory begins earlier and others end
    earlier."""
    row = _row(link, rows)
    return confirmed(candidate, row, changes(layout(_since(links, link, candidate, row), wins), rows))


def _merge(candidate: Memory, rows: Sequence[StoredMemory]) -> Decisions:
    """Merges the candidate with the other memories. A repetition confirms the member that it repeats, and the valid
    merged memory."""
    chosen = {row.replaced_by for row in rows if row.closed_reason == "reverted"}  # closed by the user, not by a merge
    derived = [row for row in rows if is_merge(row) and row.closed_reason != "reverted" and row.id not in chosen]
    merges = {row.id: row for row in derived}
    links, new = [link for link in links_of(rows) if link.id not in merges], link_of(candidate)
    same = _same_value(links, new)
    chain = _since(links, same, candidate, _row(same, rows)) if same else [*links, new]
    plan = merging(chain, {**{row.id: memory_of(row) for row in rows}, candidate.id: candidate})
    changed = changes({**_never_held(merges), **plan.intervals}, rows)
    made = [memory for memory in plan.made if memory.id not in merges]
    if same is None:
        return recorded([candidate, *made], changed)
    ids = {memory.id for memory in made}
    again = confirmed(candidate, _row(same, rows), [interval for interval in changed if interval.memory_id not in ids])
    holders = [
        row for row in _alive(merges.values(), candidate) if plan.intervals.get(row.id) == Interval(memory_id=row.id)
    ]
    too = [event for row in holders if row.valid_from <= candidate.valid_from for event in confirmed(candidate, row)]
    return (*too, *again, *recorded(made, [interval for interval in changed if interval.memory_id in ids]))


def _never_held(merges: Mapping[UUID, StoredMemory]) -> dict[UUID, Interval]:
    """Returns an empty interval for each stored merged memory. The new plan overrides the intervals of those that it
    contains again."""
    return {
        id_: Interval(memory_id=id_, valid_to=row.valid_from, replaced_by=row.replaced_by, reason="merged")
        for id_, row in merges.items()
    }


def _keep_both(candidate: Memory, rows: Sequence[StoredMemory]) -> Decisions:
    links, new = links_of(_in_use(rows)), link_of(candidate)
    if same := _same_value(links, new):
        return confirmed(candidate, _row(same, rows))
    denied = [link for link in links if is_denial(new) and link.begin <= new.begin and latest(new, link)]
    return recorded([candidate], [closed(link.id, new.begin, new.id, "superseded") for link in denied])


def _ask_user(candidate: Memory, rows: Sequence[StoredMemory]) -> Decisions:
    """Leaves the candidate pending until the user has answered which memory is valid."""
    value = value_of(candidate.value, candidate.content)
    held = _alive(rows, candidate)
    waiting = [row for row in rows if row.status == "pending"]
    if same := [row for row in (*held, *waiting) if value_of(row.value, row.content) == value]:
        return confirmed(candidate, same[0])
    if not held:
        return recorded([candidate])
    conflict = MemoryConflictRaised(
        conflict_id=uuid5(_CONFLICTS, str(candidate.id)),
        memory=candidate,
        against=tuple(row.id for row in held),
        question=question(candidate.content, [row.content for row in held]),
    )
    return (conflict,)


def question(new: str, old: Sequence[str]) -> str:
    """Returns the question for the user, in the language of the new memory."""
    if any("\u4e00" <= letter <= "\u9fff" for letter in new):
        return f"之前记录的是{'、'.join(f'“{text}”' for text in old)}，现在又说“{new}”。以哪个为准？"
    return f"Remembered so far: {' and '.join(f'“{text}”' for text in old)}. New: “{new}”. Which one is right?"


def _same_value(links: Iterable[Link], new: Link) -> Link | None:
    """Returns the newest memory with the same value, if neither had expired when the other began. A memory that the
    user edited is not matched by an older statement, because an edit applies from its time on."""
    alive = [link for link in in_order(links) if not link.ended(new.begin) and not new.ended(link.begin)]
    same = (link for link in reversed(alive) if link.value == new.value)
    return next((link for link in same if not link.edit or link.begin <= new.begin), None)


def _since(links: Iterable[Link], link: Link, candidate: Memory, row: StoredMemory) -> list[Link]:
    """Returns the links after `link` was confirmed by the candidate: it may begin earlier, and its expiry moves."""
    longer = max(candidate.valid_from - row.confirmed_at, timedelta(0))
    again = replace(
        link,
        begin=min(link.begin, candidate.valid_from),
        ends=link.ends + longer if link.ends is not None and link.ends == row.expires_at else link.ends,
    )
    return [again if other is link else other for other in links]


def _in_use(rows: Iterable[StoredMemory]) -> list[StoredMemory]:
    return [row for row in rows if row.status in ("valid", "archived")]


def _alive(rows: Iterable[StoredMemory], candidate: Memory) -> list[StoredMemory]:
    """Returns the rows in use that had not expired when the candidate was said."""
    return [row for row in _in_use(rows) if row.expires_at is None or row.expires_at > candidate.valid_from]


def _row(link: Link, rows: Iterable[StoredMemory]) -> StoredMemory:
    return next(row for row in rows if row.id == link.id)


RESOLVERS: Mapping[Strategy, Resolve] = {
    "KEEP_LATEST": _keep_latest,
    "KEEP_HIGHEST": _keep_by(highest),
    "KEEP_OLDEST": _keep_by(oldest),
    "MERGE": _merge,
    "KEEP_BOTH": _keep_both,
    "ASK_USER": _ask_user,
}
