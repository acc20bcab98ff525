"""Loads chunks directly into memory_vectors by COPY, as 200,000 recorded turns would create them."""

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
    """Makes random unit vectors with a common part, like an embedding model's; they represent its cost, not its
    meaning."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(7)
        self._axes = self._random.standard_normal((64, DIMENSIONS), dtype=np.float32) / DIMENSIONS**0.5
        self._center = self._random.standard_normal(DIMENSIONS, dtype=np.float32) / DIMENSIONS**0.5

    def rows(self, count: int) -> NDArray[np.float32]:
        made = 2 * self._center + self._random.standard_normal((count, 64), dtype=np.float32) @ self._axes
        return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), dtype=np.float32)


async def load(conn: Connection, conversations: Conversations, sizes: Sequence[int]) -> None:
    """Loads one user for each size. The user is named after the size and has that many chunks."""
    vectors, seq = RandomVectors(), itertools.count(1)
    for size in sizes:
        pieces = itertools.islice(_chunks(conversations, size, seq), size)
        while batch := list(itertools.islice(pieces, 2_000)):
            await copy_chunks(conn, batch, vectors.rows(len(batch)), f"{size}", MODEL)


async def copy_chunks(
    conn: Connection, chunks: Sequence[Chunk], vectors: NDArray[np.floating], user: str, model: str
) -> None:
    """Copies chunks into the table in the form that the projector and the embedder write."""
    target = f"COPY memory_vectors ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
    await register_vector_async(conn)
    async with conn.cursor() as cursor, cursor.copy(target.encode()) as copy:
        copy.set_types(TYPES)
        for chunk, vector in zip(chunks, vectors, strict=True):
            await copy.write_row(_row(chunk, user, model, vector))


@contextlib.asynccontextmanager
async def indexed_afterwards(conn: Connection) -> AsyncIterator[None]:
    """Drops the indexes and recreates them after the block has loaded the rows, which takes a third of the time."""
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
    """Yields distinct chunks of the turns that contain words; if there are too few, repeats the turns on new
    threads."""
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
