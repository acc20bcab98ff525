"""Chunks straight into memory_vectors, by COPY: what 200,000 recorded turns would leave there."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from pgvector.psycopg import register_vector_async

from tests.benchmarks.conversations import Conversations
from turnlog.events.contracts import Event, Recorded
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.chunking import Chunk, chunks
from turnlog.projectors.models.chunks.projection import NEIGHBOUR_INDEXES

MODEL, DIMENSIONS = "random", 384
TENANT = "scale"
COLUMNS = (
    *("tenant", "thread_id", "id", "user_id", "seq", "seqs", "event_ids", "source_ids", "piece", "role", "speaker"),
    *("chunk", "index_text", "terms", "embedding", "embedding_model", "created_at"),
)
TYPES = (
    *("text", "text", "text", "text", "int8", "int8[]", "uuid[]", "text[]", "int4", "text", "text"),
    *("text", "text", "text[]", "halfvec", "text", "timestamptz"),
)


class RandomVectors:
    """Of length 1 and all alike in part, as an embedding model's are; they stand for its cost, not for its sense."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(7)
        self._axes = self._random.standard_normal((64, DIMENSIONS), dtype=np.float32) / DIMENSIONS**0.5
        self._center = self._random.standard_normal(DIMENSIONS, dtype=np.float32) / DIMENSIONS**0.5

    def rows(self, count: int) -> NDArray[np.float32]:
        made = 2 * self._center + self._random.standard_normal((count, 64), dtype=np.float32) @ self._axes
        return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), dtype=np.float32)


async def load(conn: Connection, conversations: Conversations, sizes: Sequence[int]) -> None:
    """One user a size, named by it, with so many chunks in the threads of the data."""
    vectors, seq = RandomVectors(), itertools.count(1)
    for size in sizes:
        found = itertools.islice(_chunks(conversations, size, seq), size)
        while batch := list(itertools.islice(found, 2_000)):
            await copy_chunks(conn, batch, vectors.rows(len(batch)), f"{size}", MODEL)


async def copy_chunks(
    conn: Connection, chunks: Sequence[Chunk], vectors: NDArray[np.floating], user: str, model: str
) -> None:
    """As the projector and the embedder would leave them."""
    target = f"COPY memory_vectors ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
    await register_vector_async(conn)
    async with conn.cursor() as cursor, cursor.copy(target.encode()) as copy:
        copy.set_types(TYPES)
        for chunk, vector in zip(chunks, vectors, strict=True):
            await copy.write_row(_row(chunk, user, model, vector))


@contextlib.asynccontextmanager
async def indexed_afterwards(conn: Connection) -> AsyncIterator[None]:
    """Indexes are dropped and made again when the rows are there, which takes a third of the time."""
    rows = await conn.execute(
        "SELECT indexname::text, indexdef FROM pg_indexes WHERE tablename = 'memory_vectors' "
        "AND indexname <> 'memory_vectors_pkey' AND schemaname = current_schema"
    )
    indexes = await rows.fetchall()
    for name, _ in indexes:
        await conn.execute(f"DROP INDEX {name}".encode())
    yield
    await conn.execute("SET maintenance_work_mem = '1GB'")
    for _, definition in indexes:
        await conn.execute(definition.encode())
    await conn.execute(NEIGHBOUR_INDEXES.encode())
    await conn.execute("VACUUM ANALYZE memory_vectors")


def _chunks(conversations: Conversations, size: int, seqs: Iterator[int]) -> Iterator[Chunk]:
    """Of the turns with words in them, again from the start under new threads when there are too few; each once."""
    for again in itertools.count():
        seen: set[str] = set()
        for event in conversations.events(size + size // 5):
            placed = event.model_copy(update={"tenant": TENANT, "thread": f"{size}-{again}-{event.thread}"})
            for chunk in chunks(_recorded(placed, next(seqs))):
                if chunk.id not in seen:
                    seen.add(chunk.id)
                    yield chunk


def _recorded(event: Event, seq: int) -> Recorded:
    return Recorded(event=event, seq=seq, partition=0, stored_at=event.time)


def _row(chunk: Chunk, user: str, model: str, vector: NDArray[np.floating]) -> tuple[object, ...]:
    ids: list[UUID] = list(chunk.event_ids)
    return (
        *(chunk.tenant, chunk.thread, chunk.id, user, chunk.seqs[0], list(chunk.seqs), ids, list(chunk.source_ids)),
        *(chunk.piece, "user", chunk.speaker, chunk.text, chunk.index_text, list(chunk.terms)),
        *(HalfVector(vector), model, chunk.created_at),
    )
