"""Keeps the state of memories after events that are not stored yet, so that later decisions of a call see the earlier
ones. Pure.

Makes the same changes to values as projectors/models/memories/sql.py makes to rows; a test compares the two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from turnlog.agent.memory.deciding.writing import Place
from turnlog.events.contracts import (
    EventData,
    Interval,
    MemoriesCompacted,
    MemoriesRevised,
    Memory,
    MemoryCompared,
    MemoryConfirmed,
    MemoryConflictAnswered,
    MemoryConflictRaised,
    MemoryRecorded,
)
from turnlog.projectors.models.memories.lookup import StoredMemory
from turnlog.projectors.models.memories.sql import LAST_EXPIRY, MAX_SOURCES
from turnlog.projectors.models.memories.text import content_key


class MemoryState:
    """Rows of `memories` by id, changed by `apply`."""

    def __init__(self, place: Place, rows: Iterable[StoredMemory], at: datetime) -> None:
        """Starts from the rows of a memory thread. at: the time of the events."""
        self._place, self.at = place, at
        self.rows: dict[UUID, StoredMemory] = {row.id: row for row in rows}

    def matching(self, memory: Memory) -> list[StoredMemory]:
        """Returns the rows with the memory's dedupe key or content key."""
        key = content_key(memory.kind, memory.content)
        return [
            row
            for row in self.rows.values()
            if row.content_key == key or (row.dedupe_key is not None and row.dedupe_key == memory.dedupe_key)
        ]

    def apply(self, events: Sequence[EventData]) -> None:
        for data in events:
            match data:
                case MemoryRecorded(memory=memory, intervals=intervals):
                    self._add(memory, "valid")
                case MemoryConflictRaised(memory=memory):
                    self._add(memory, "pending")
                    row = self.rows[memory.id]
                    self.rows[memory.id] = replace(row, status="pending") if row.status == "valid" else row
                    intervals = ()
                case MemoryConfirmed(intervals=intervals):
                    self._confirm(data)
                case MemoriesCompacted(memory=made, intervals=intervals):
                    if made is not None:
                        self._add(made, "valid")
                case (
                    MemoriesRevised(intervals=intervals)
                    | MemoryCompared(intervals=intervals)
                    | MemoryConflictAnswered(intervals=intervals)
                ):
                    pass
                case _:
                    intervals = ()
            for interval in intervals:
                self._revise(interval)

    def _add(self, memory: Memory, status: str) -> None:
        said_at = max((source.said_at for source in memory.sources), default=self.at)
        row = StoredMemory(
            **{name: getattr(memory, name) for name in Memory.model_fields},
            thread=self._place.thread,
            user=self._place.user,
            seq=2**62,
            status=status,
            content_key=content_key(memory.kind, memory.content),
            importance_at=self.at,
            access_count=0,
            last_accessed_at=None,
            valid_to=None,
            replaced_by=None,
            closed_reason=None,
            created_at=self.at,
            confirmed_at=said_at,
            archived_at=None,
            archived_reason=None,
            embedding_model=None,
        )
        self.rows.setdefault(memory.id, row)

    def _confirm(self, said: MemoryConfirmed) -> None:
        row = self.rows.get(said.memory_id)
        if row is None or row.status == "forgotten":
            return
        at = said.source.said_at
        longer, expiry = max(at, row.confirmed_at) - row.confirmed_at, row.expires_at
        is_new = said.source not in row.sources and len(row.sources) < MAX_SOURCES
        self.rows[row.id] = replace(
            row,
            importance=said.importance,
            confidence=said.confidence,
            importance_at=max(row.importance_at, self.at),
            valid_from=min(row.valid_from, at),
            expires_at=None if expiry is None else expiry + min(longer, LAST_EXPIRY - expiry),
            confirmed_at=max(row.confirmed_at, at),
            sources=(*row.sources, said.source) if is_new else row.sources,
        )

    def _revise(self, interval: Interval) -> None:
        row = self.rows.get(interval.memory_id)
        if row is None:
            return
        status = "valid" if interval.valid_to is None else "closed"
        self.rows[row.id] = replace(
            row,
            valid_to=interval.valid_to,
            replaced_by=interval.replaced_by,
            closed_reason=interval.reason,
            status=row.status if row.status == "forgotten" else status,
            archived_at=None if interval.valid_to is None else row.archived_at,
            archived_reason=None if interval.valid_to is None else row.archived_reason,
        )
