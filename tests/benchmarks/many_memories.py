"""Makes many memories of one user with random vectors, as events and in the embedding cache."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from uuid import UUID, uuid5

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from tests.benchmarks.recalls import DIMENSIONS, MODEL
from turnlog.events.contracts import Event, MemoriesEmbedded, Memory, MemoryRecorded, MemorySource
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection

USER = "ann"
THREAD = memory_thread(USER)
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
NAMESPACE = UUID(int=4)


def id_of(text: str) -> UUID:
    return uuid5(NAMESPACE, text)


def memories(texts: Sequence[str], apart: timedelta) -> Iterator[Event]:
    """Yields an event for each text that records it as a memory, and then the events of their embeddings.

    apart: the time between two memories; the first is from BEGIN."""
    for number, text in enumerate(texts):
        at = BEGIN + number * apart
        said = MemorySource(thread="t", seq=number + 1, event_id=id_of(text), quote=text, said_at=at)
        made = Memory(
            id=id_of(text),
            kind="FACT",
            content=text,
            importance=0.5 + number % 50 / 100,
            confidence=0.8,
            origin="llm",
            valid_from=at,
            sources=(said,),
        )
        yield Event(time=at, thread=THREAD, user=USER, data=MemoryRecorded(memory=made))
    for start in range(0, len(texts), 500):
        ids = tuple(id_of(text) for text in texts[start : start + 500])
        embedded = MemoriesEmbedded(model=MODEL, dimensions=DIMENSIONS, memory_ids=ids)
        yield Event(time=datetime.now(UTC), thread=THREAD, user=USER, data=embedded)


async def cache(conn: Connection, texts: Sequence[str], vectors: Iterable[NDArray[np.float32]]) -> None:
    async with conn.cursor() as cursor:
        await cursor.execute("CREATE TEMP TABLE made (text_hash bytea, embedding text)")
        async with cursor.copy("COPY made FROM STDIN") as copy:
            for text, vector in zip(texts, vectors, strict=True):
                await copy.write_row((sha256(text.encode()).digest(), HalfVector(vector).to_text()))
        await cursor.execute(
            "INSERT INTO embedding_cache SELECT %s, text_hash, embedding::halfvec FROM made ON CONFLICT DO NOTHING",
            (MODEL,),
        )
