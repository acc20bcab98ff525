"""Measures recall over all memories of one user compared with reading one row by its primary key (target: p95
of 25 ms)."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice

from tests.benchmarks.conversations import Conversations
from tests.benchmarks.many_memories import THREAD, cache, id_of, memories
from tests.benchmarks.measuring import Row, milliseconds, ms, quantile
from tests.benchmarks.recalls import DIMENSIONS, MODEL, RandomVectors
from tests.benchmarks.stand import Stand, fill, project
from turnlog.agent.recall.memory_search import MemoryRecall
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.entities import ENTITIES
from turnlog.projectors.models.memories.memory_candidates import MemoryScope
from turnlog.projectors.models.memories.projection import MEMORIES, NEIGHBOUR_INDEXES

QUESTIONS = 60


async def measure(stand: Stand) -> list[Row]:
    many = stand.sized(100_000, 9_000)
    questions = cycle([text for text in stand.conversations.texts(2_000) if 25 < len(text) < 120])
    async with stand.empty_log() as log, stand.fresh_database() as url, await connect(url) as conn:
        texts = list(_texts(stand.conversations, many))
        await cache(conn, texts, RandomVectors().vectors(many))
        await fill(log, memories(texts, timedelta(minutes=5)))
        await project(log, url, conn, (MEMORIES, ENTITIES))
        await conn.execute(NEIGHBOUR_INDEXES.encode())
        await conn.execute("VACUUM ANALYZE memories")
        kinds = (("words", MemoryRecall(None)), ("words and vectors", MemoryRecall(RandomVectors())))
        return [await _row(conn, texts, kind, recall, questions) for kind, recall in kinds]


def _texts(conversations: Conversations, count: int) -> Iterator[str]:
    said = [text for text in conversations.texts(2 * count) if len(text) > 25] or ["nothing"]
    return islice((f"{text} {n}" for n, text in enumerate(cycle(said))), count)


async def _row(conn: Connection, texts: list[str], kind: str, recall: MemoryRecall, questions: "cycle[str]") -> Row:
    scope = MemoryScope("default", THREAD, datetime.now(UTC))
    known = id_of(texts[0])

    async def ours() -> None:
        await recall.search(conn, scope, next(questions))

    async def floor() -> None:
        parameters = ("default", THREAD, known)
        cursor = await conn.execute(
            "SELECT content FROM memories WHERE tenant = %s AND thread_id = %s AND id = %s", parameters
        )
        await cursor.fetchone()

    await milliseconds(ours, 5)
    mine, theirs = await milliseconds(ours, QUESTIONS), await milliseconds(floor, QUESTIONS)
    return Row(
        f"recall of memories, {len(texts):,} of one user, {kind}",
        f"{ms(quantile(mine, 0.5))} / {ms(quantile(mine, 0.95))}",
        f"{ms(quantile(theirs, 0.5))} / {ms(quantile(theirs, 0.95))}",
        quantile(mine, 0.5) / quantile(theirs, 0.5),
        None,
        None,
        f"p50 / p95 of {QUESTIONS} questions of whole sentences, the 5 best; without the question's embedding "
        f"({MODEL} vectors, {DIMENSIONS} dimensions). Floor: one row by its primary key.",
    )
