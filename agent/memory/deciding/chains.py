"""Computes the validity intervals of memories that contradict each other. Pure: takes memories, returns an interval for
each.

The intervals depend on the memories alone, not on the order in which they arrived. Times are those of the statements,
not of their arrival.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from turnlog.agent.memory.deciding.claims import rank_of, value_of
from turnlog.events.contracts import EndReason, Interval, Memory
from turnlog.projectors.models.memories.lookup import StoredMemory
from turnlog.projectors.models.terms import has_words


@dataclass(frozen=True, slots=True)
class Link:
    """A memory in a chain. begin: the time when it was first said. said: all times when it was said, ascending.

    ends: its end regardless of the chain (its time to live, or a former successor). edit: True if the user replaced
    another memory with this one, which no strategy undoes. present: the interval of its row; None for a new memory.
    """

    id: UUID
    value: str
    begin: datetime
    said: tuple[datetime, ...]
    ends: datetime | None = None
    edit: bool = False
    present: Interval | None = None

    def ended(self, at: datetime) -> bool:
        return self.ends is not None and self.ends <= at


Wins = Callable[[Link, Link], bool]  # (later, holder) → True if the later memory ends the holder


_DENIAL = re.compile(r"\((?P<kind>not|left|ends) (?P<what>.+)\)")


def is_denial(link: Link) -> bool:
    return _DENIAL.fullmatch(link.value) is not None


def only_ends(value: str | None) -> bool:
    """Returns whether a memory with this value only ends another one ("(ends bosch)")."""
    denial = _DENIAL.fullmatch(value or "")
    return denial is not None and denial["kind"] == "ends"


def latest(later: Link, holder: Link) -> bool:
    """Returns whether the later claim ends the holder. A denial such as "(not turin)" ends only the value that it
    denies, or another denial; "(not *)" denies any value."""
    denied = _DENIAL.fullmatch(later.value)
    if denied is None or is_denial(holder) or denied["what"] == "*":
        return True
    return has_words(holder.value, denied["what"]) or has_words(denied["what"], holder.value)


def oldest(_later: Link, _holder: Link) -> bool:
    return False


def highest(later: Link, holder: Link) -> bool:
    return rank_of(later.value) > rank_of(holder.value)


def link_of(memory: Memory) -> Link:
    """Returns the link of a memory that is not stored yet."""
    said = tuple(sorted(source.said_at for source in memory.sources)) or (memory.valid_from,)
    return Link(memory.id, value_of(memory.value, memory.content), memory.valid_from, said, memory.expires_at)


def links_of(rows: Sequence[StoredMemory]) -> list[Link]:
    """Returns the links of rows. Pending and forgotten rows are left out, also reverted rows with an empty interval and
    rows that ended when they began (by their time to live or without a successor)."""
    counting = [
        row
        for row in rows
        if row.status not in ("pending", "forgotten")
        and not (row.closed_reason == "reverted" and row.valid_to is not None and row.valid_to <= row.valid_from)
    ]
    known = {row.id: (row, value_of(row.value, row.content)) for row in counting}
    edits = {row.replaced_by for row in rows if row.closed_reason in ("edited", "reverted")}
    links = [
        _held(row, value, known[row.replaced_by][1] if row.replaced_by in known else None, row.id in edits)
        for row, value in known.values()
    ]
    return [link for link in links if not link.ended(link.begin)]


def _held(row: StoredMemory, value: str, after: str | None, edit: bool) -> Link:
    """Returns the link of a stored memory. after: the value of its successor; None without a valid successor."""
    present = Interval(memory_id=row.id, valid_to=row.valid_to, replaced_by=row.replaced_by, reason=row.closed_reason)
    is_merged_away = row.closed_reason == "merged"  # closed by a merge that may have been undone
    otherwise = row.valid_to if after is None and not is_merged_away else None
    return Link(
        *(row.id, value, row.valid_from, _sayings(row, value, after)),
        ends=min((end for end in (row.expires_at, otherwise) if end is not None), default=None),
        edit=edit,
        present=present,
    )


def _sayings(row: StoredMemory, value: str, after: str | None) -> tuple[datetime, ...]:
    """Returns the times when the memory was said before its successor; repetitions after the successor are a separate
    memory."""
    said = {source.said_at for source in row.sources} | {row.valid_from}
    if row.valid_to is None:
        return tuple(sorted(said))
    end = (row.valid_to, value if after is None else after)
    return tuple(sorted(at for at in said if at == row.valid_from or (at, value) < end))


def in_order(links: Iterable[Link]) -> list[Link]:
    return sorted(links, key=lambda link: (link.begin, link.value, str(link.id)))


def layout(links: Iterable[Link], wins: Wins) -> dict[UUID, Interval]:
    """Returns the interval of each memory. It ends when a later memory wins; a memory that never wins has an empty
    interval."""
    intervals: dict[UUID, Interval] = {}
    holder: Link | None = None
    for link in in_order(links):
        if holder is None or holder.ended(link.begin):
            intervals.update(run_out(holder))
            holder = link
        elif link.edit or wins(link, holder):
            intervals[holder.id] = closed(holder.id, link.begin, link.id, "edited" if link.edit else "superseded")
            holder = link
        else:
            intervals[link.id] = closed(link.id, link.begin, holder.id, "rejected")
    return intervals | run_out(holder)


def run_out(holder: Link | None) -> dict[UUID, Interval]:
    """Returns the interval of a memory without a successor: the stored one, or an open one (the daily job applies times
    to live)."""
    if holder is None:
        return {}
    kept = holder.present is not None and holder.present.valid_to is not None and holder.ends == holder.present.valid_to
    return {holder.id: holder.present if kept and holder.present else Interval(memory_id=holder.id)}


def closed(memory_id: UUID, at: datetime, by: UUID | None, reason: EndReason) -> Interval:
    return Interval(memory_id=memory_id, valid_to=at, replaced_by=by, reason=reason)


def lasts_as_long(kept: datetime | None, lost: datetime | None) -> bool:
    """Returns whether a memory with expires_at `kept` stays at least as long as one with expires_at `lost`."""
    return kept is None or (lost is not None and kept >= lost)


def changes(intervals: dict[UUID, Interval], rows: Iterable[StoredMemory]) -> list[Interval]:
    """Returns the intervals that differ from those stored in the rows; a new memory counts as having an open
    interval."""
    present = {row.id: (row.valid_to, row.replaced_by) for row in rows}
    return [
        interval
        for id_, interval in intervals.items()
        if (interval.valid_to, interval.replaced_by) != present.get(id_, (None, None))
    ]


def memory_of(row: StoredMemory) -> Memory:
    return Memory.model_validate({name: getattr(row, name) for name in Memory.model_fields})
