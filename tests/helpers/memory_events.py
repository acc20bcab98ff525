"""Makes events for memories of a test's users, as the extraction would append them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import numpy as np
from helpers.openai_bodies import bag_of_words
from numpy.typing import NDArray
from pgvector import HalfVector

from turnlog.agent.memory.dates.dates import dates_in
from turnlog.events.contracts import (
    EntitiesFound,
    Entity,
    Event,
    EventData,
    MemoriesEmbedded,
    Memory,
    MemoryConfirmed,
    MemoryRecorded,
    MemorySource,
)
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
MODEL, DIMENSIONS = "words", 64


def memory_id(content: str, user: str = "ann") -> UUID:
    return uuid5(NAMESPACE_OID, f"{user}/{content}")


def memory(content: str, said_at: datetime = NOW, user: str = "ann", **fields: Any) -> Memory:
    source = MemorySource(
        thread="chat", seq=1, event_id=memory_id(f"{content} said", user), quote=content, said_at=said_at
    )
    usual: dict[str, Any] = {
        "kind": "FACT",
        "importance": 0.8,
        "confidence": 0.9,
        "origin": "explicit",
        "valid_from": said_at,
        "sources": (source,),
    }
    return Memory(id=memory_id(content, user), content=content, **{**usual, **fields})


def event(data: EventData, user: str = "ann", tenant: str = "default", time: datetime = NOW) -> Event:
    return Event(time=time, tenant=tenant, thread=memory_thread(user), user=user, data=data)


def recorded(content: str, said_at: datetime = NOW, user: str = "ann", **fields: Any) -> Event:
    """Returns a memory_recorded event. fields: `intervals` is a field of the event, all others are fields of the
    memory."""
    intervals = fields.pop("intervals", ())
    tenant = fields.pop("tenant", "default")
    made = memory(content, said_at, user, **fields)
    return event(MemoryRecorded(memory=made, intervals=intervals), user, tenant, said_at)


def said_again(content: str, said_at: datetime, user: str = "ann") -> Event:
    said = MemoryConfirmed(
        memory_id=memory_id(content, user),
        source=memory(content, said_at, user).sources[0],
        importance=0.8,
        confidence=0.9,
    )
    return event(said, user, time=said_at)


def entities(*named: tuple[str, str], user: str = "ann") -> Event:
    """Returns an entities_found event. named: (type, name) pairs."""
    return event(EntitiesFound(entities=tuple(Entity(type=kind, name=name) for kind, name in named)), user)


def yesterdays_of_zone_and_utc(zone: tzinfo) -> tuple[datetime, datetime]:
    """Returns two times: the first was yesterday only in `zone`, the second only in UTC."""
    (there,), (utc,) = (dates_in("yesterday", datetime.now(UTC), timezone) for timezone in (zone, UTC))
    before, after = min(there.from_time, utc.from_time), max(there.to_time, utc.to_time) - timedelta(hours=2)
    early = before + timedelta(hours=2)
    return (early, after) if there.from_time == before else (after, early)


class WordVectors:
    """Replaces a model server: makes vectors of a text's words, so that texts that share words are near each other."""

    model = MODEL

    async def embed_query(self, text: str, asker: str | None = None) -> NDArray[np.float32]:
        return np.array(bag_of_words(text, DIMENSIONS), dtype=np.float32)


async def cached_vectors(conn: Connection, texts: Sequence[str]) -> None:
    await conn.cursor().executemany(
        "INSERT INTO embedding_cache (model, text_hash, embedding) VALUES (%s, %s, %s::halfvec) ON CONFLICT DO NOTHING",
        [
            (MODEL, sha256(text.encode()).digest(), HalfVector(bag_of_words(text, DIMENSIONS)).to_text())
            for text in texts
        ],
    )


def embedded(*contents: str, user: str = "ann") -> Event:
    """Returns a memories_embedded event for the memories with these contents, whose vectors are in the cache."""
    ids = tuple(memory_id(content, user) for content in contents)
    return event(MemoriesEmbedded(model=MODEL, dimensions=DIMENSIONS, memory_ids=ids), user)
