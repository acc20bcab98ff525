"""Manages the memories of the user ann on the real log and database, with a clock that the test sets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from conftest import Settled
from helpers.sample_events import MAY_8

from turnlog.agent.memory.deciding.service import Memories
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import Memory, MemorySource
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.lookup import StoredMemory, memories_by_id, valid_memories

ANN = memory_thread("ann")


@dataclass(slots=True)
class Clock:
    """Returns the time that the test sets."""

    time: datetime = MAY_8

    def __call__(self) -> datetime:
        return self.time

    def days(self, days: float) -> None:
        self.time += timedelta(days=days)


@dataclass(frozen=True, slots=True)
class UserMemories:
    """The memories of ann."""

    memories: Memories
    log: Log
    db: Connection
    settled: Settled
    clock: Clock

    async def says(self, content: str, **fields: Any) -> UUID:
        return (await self.memories.remember("default", "ann", content, **fields)).memory_id

    async def holds(self, user: str = "ann") -> list[str]:
        await self.settled("memories")
        memories = await valid_memories(self.db, "default", memory_thread(user), self.clock.time)
        return sorted(memory.content for memory in memories)

    async def row(self, id_: UUID) -> StoredMemory:
        await self.settled("memories")
        return (await memories_by_id(self.db, "default", ANN, [id_]))[id_]

    async def events(self, thread: str = ANN) -> list[str]:
        return [recorded.event.type async for recorded in self.log.read_thread("default", thread)]


def extracted(number: int, content: str, day: int = 0, **fields: Any) -> Memory:
    """Returns a memory like an extractor's; ids and times follow from the turn."""
    at = MAY_8 + timedelta(days=day)
    source = MemorySource(thread="t", seq=number, event_id=UUID(int=number), quote=content, said_at=at)
    usual: dict[str, Any] = {
        **{"id": UUID(int=1_000 + number), "kind": "FACT", "importance": 0.8, "confidence": 0.9, "origin": "rule"},
        **{"valid_from": at, "sources": (source,)},
    }
    return Memory.model_validate({**usual, "content": content, **fields})


def gpa(number: int, value: str, day: int = 0, **fields: Any) -> Memory:
    return extracted(number, f"GPA is {value}", day, value=value, dedupe_key="gpa", **fields)


@asynccontextmanager
async def open_user_memories(
    log: Log, db: Connection, settled: Settled, database_url: str
) -> AsyncIterator[UserMemories]:
    clock = Clock()
    async with connection_pool(database_url) as pool:
        yield UserMemories(Memories(log, pool, clock), log, db, settled, clock)
