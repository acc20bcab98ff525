"""Recall over all memories of one user, beside a look at one row by its primary key (issue: p95 of 25 ms)."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import cycle, islice
from uuid import UUID, uuid5

from pgvector import HalfVector

from tests.benchmarks.conversations import Conversations
from tests.benchmarks.measuring import Row, milliseconds, ms, quantile
from tests.benchmarks.recalls import DIMENSIONS, MODEL, RandomVectors
from tests.benchmarks.stand import Stand, fill, project
from turnlog.agent.memories.retrieval import MemoryRecall
from turnlog.events.contracts import Event
from turnlog.events.memory_contracts import MemoriesEmbedded, Memory, MemoryRecorded, MemorySource
from turnlog.events.subjects import memory_thread
from turnlog.projectors.database import connect
from turnlog.projectors.entities import ENTITIES
from turnlog.projectors.memories import MEMORIES, NEIGHBOUR_INDEXES
from turnlog.projectors.memory_search import MemoryScope
from turnlog.projectors.writer import Connection

USER = "ann"
THREAD = memory_thread(USER)
NAMESPACE = UUID(int=4)
START = datetime(2025, 1, 1, tzinfo=UTC)
QUESTIONS = 60


async def measure(stand: Stand) -> list[Row]:
    many = stand.sized(100_000, 9_000)
    questions = cycle([text for text in stand.conversations.texts(2_000) if 25 < len(text) < 120])
    async with stand.empty_log() as log, stand.fresh_database() as url, await connect(url) as conn:
        texts = list(_texts(stand.conversations, many))
        await _cache(conn, texts)
        await fill(log, _events(texts))
        await project(log, url, conn, (MEMORIES, ENTITIES))
        await conn.execute(NEIGHBOUR_INDEXES.encode())
        await conn.execute("VACUUM ANALYZE memories")
        kinds = (("words", MemoryRecall(None)), ("words and vectors", MemoryRecall(RandomVectors())))
        return [await _row(conn, many, kind, recall, questions) for kind, recall in kinds]


def _texts(conversations: Conversations, count: int) -> Iterator[str]:
    said = [text for text in conversations.texts(2 * count) if len(text) > 25] or ["nothing"]
    return islice((f"{text} {n}" for n, text in enumerate(cycle(said))), count)


def _events(texts: list[str]) -> Iterator[Event]:
    for number, text in enumerate(texts):
        at = START + timedelta(minutes=5 * number)
        said = MemorySource(thread="t", seq=number + 1, event_id=_id(text), quote=text, said_at=at)
        made = Memory(
            id=_id(text),
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
        ids = tuple(_id(text) for text in texts[start : start + 500])
        embedded = MemoriesEmbedded(model=MODEL, dimensions=DIMENSIONS, memory_ids=ids)
        yield Event(time=datetime.now(UTC), thread=THREAD, user=USER, data=embedded)


def _id(text: str) -> UUID:
    return uuid5(NAMESPACE, text)


async def _cache(conn: Connection, texts: list[str]) -> None:
    vectors = RandomVectors().vectors(len(texts))
    async with conn.cursor() as cursor:
        await cursor.execute("CREATE TEMP TABLE made (text_hash bytea, embedding text)")
        async with cursor.copy("COPY made FROM STDIN") as copy:
            for text, vector in zip(texts, vectors, strict=True):
                await copy.write_row((sha256(text.encode()).digest(), HalfVector(vector).to_text()))
        await cursor.execute(
            "INSERT INTO embedding_cache SELECT %s, text_hash, embedding::halfvec FROM made ON CONFLICT DO NOTHING",
            (MODEL,),
        )


async def _row(conn: Connection, many: int, kind: str, recall: MemoryRecall, questions: "cycle[str]") -> Row:
    scope = MemoryScope("default", THREAD, datetime.now(UTC))
    known = _id(next(islice(questions, 1)))

    async def ours() -> None:
        await recall.search(conn, scope, next(questions))

    async def floor() -> None:
        place = ("default", THREAD, known)
        found = await conn.execute(
            "SELECT content FROM memories WHERE tenant = %s AND thread_id = %s AND id = %s", place
        )
        await found.fetchone()

    await milliseconds(ours, 5)
    mine, theirs = await milliseconds(ours, QUESTIONS), await milliseconds(floor, QUESTIONS)
    return Row(
        f"recall of memories, {many:,} of one user, {kind}",
        f"{ms(quantile(mine, 0.5))} / {ms(quantile(mine, 0.95))}",
        f"{ms(quantile(theirs, 0.5))} / {ms(quantile(theirs, 0.95))}",
        quantile(mine, 0.5) / quantile(theirs, 0.5),
        None,
        None,
        f"p50 / p95 of {QUESTIONS} questions of whole sentences, the 5 best; without the question's embedding "
        f"({MODEL} vectors, {DIMENSIONS} dimensions). Floor: one row by its primary key.",
    )
