"""Makes memories and rows for the tests of long-term memory: claims that one user said on a certain day."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from turnlog.agent.memory.deciding.conflicts import decide
from turnlog.agent.memory.deciding.memory_state import MemoryState
from turnlog.agent.memory.deciding.semantic_conflicts import resolve_near_duplicate
from turnlog.agent.memory.deciding.writing import Place
from turnlog.events.contracts import EventData, Memory, MemorySource
from turnlog.projectors.models.memories.lookup import StoredMemory

DAY_0 = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLACE = Place("default", "ann")


def day(n: float) -> datetime:
    return DAY_0 + timedelta(days=n)


def source(name: str, on: float, quote: str = "said so") -> MemorySource:
    return MemorySource(thread="chat", seq=1, event_id=uuid5(NAMESPACE_OID, name), quote=quote, said_at=day(on))


def claim(content: str, on: float, name: str | None = None, **fields: Any) -> Memory:
    """Returns a fact that was said on a day. name: distinguishes memories with the same content and day."""
    name = name or f"{content} on {on}"
    decided: dict[str, Any] = {"kind": "FACT", "importance": 0.8, "confidence": 0.9, "origin": "rule"}
    return Memory(
        **{
            **{"id": uuid5(NAMESPACE_OID, f"memory {name}"), "content": content, "valid_from": day(on)},
            **{"sources": (source(name, on, content),), **decided, **fields},
        }
    )


class DecidedMemories:
    """The rows after a series of decisions, each based on the rows that the previous decisions left."""

    def __init__(self) -> None:
        self._known = MemoryState(PLACE, [], day(1_000))
        self.events: list[EventData] = []

    def say(self, *memories: Memory, similar: Sequence[tuple[StoredMemory, float]] = ()) -> "DecidedMemories":
        """Adds memories. similar: the rows that a search by vector finds for each memory."""
        for memory in memories:
            self.apply(*decide(memory, self._known.matching(memory)))
            if similar and (revised := resolve_near_duplicate(self._known.rows[memory.id], similar)):
                self.apply(revised)
        return self

    def apply(self, *events: EventData) -> "DecidedMemories":
        self._known.apply(events)
        self.events += events
        return self

    def put(self, *rows: StoredMemory) -> "DecidedMemories":
        self._known.rows.update({row.id: row for row in rows})
        return self

    @property
    def rows(self) -> list[StoredMemory]:
        return sorted(self._known.rows.values(), key=lambda row: (row.valid_from, row.content))

    @property
    def valid(self) -> list[str]:
        return [row.content for row in self.rows if row.status == "valid"]

    def row(self, id_: UUID) -> StoredMemory:
        return self._known.rows[id_]

    def on(self, n: float) -> list[str]:
        """Returns the contents that were valid on a day."""
        at = day(n)
        return [
            row.content for row in self.rows if row.valid_from <= at and (row.valid_to is None or at < row.valid_to)
        ]


def decided(memories: Iterable[Memory]) -> DecidedMemories:
    return DecidedMemories().say(*memories)
