"""Measures recall over 2,000, 20,000 and 200,000 chunks of one user, and how much worse the results for large scopes
are than an exact ranking.

The chunks are real messages in the real tables; their vectors are random, because they only represent the cost. The
results are compared with real vectors, if LoCoMo and its embeddings exist (`make eval` creates them).
"""

from collections.abc import Sequence
from itertools import cycle
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.measuring import Row, milliseconds, ms, quantile
from tests.benchmarks.scale_load import MODEL, TENANT, RandomVectors, copy_chunks, indexed_afterwards, load
from tests.benchmarks.stand import Stand
from tests.evaluation.locomo import Conversation, Question
from tests.evaluation.locomo import load as load_locomo
from tests.evaluation.vectors import Vectors, vectors_path
from turnlog.agent.recall import Query, ScopeIndex, rank
from turnlog.agent.recall.large import candidate_chunks, sample_scope
from turnlog.agent.recall.scope import Chunks
from turnlog.agent.recall.search import Recall
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope

SIZES, QUICK_SIZES = (2_000, 20_000, 200_000), (2_000, 10_000, 20_000)
K = 10
QUESTIONS = 60
EVERY = 5  # one in EVERY of LoCoMo's questions is asked
E5, LISTENER = "e5", "listener"


class RandomEmbedder:
    """Replaces the embedding model, so that the model's time is not part of the measured time."""

    model = MODEL

    def __init__(self) -> None:
        self._vectors = RandomVectors()

    async def embed_query(self, text: str, asker: str | None = None) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._vectors.rows(1)[0]
        return vector


async def measure(stand: Stand) -> list[Row]:
    sizes = QUICK_SIZES if stand.quick else SIZES
    texts = cycle([text for text in stand.conversations.texts(20_000) if 25 < len(text) < 80][:: 20_000 // 997])
    async with stand.fresh_database() as url, await connect(url) as conn:
        async with indexed_afterwards(conn):
            await load(conn, stand.conversations, sizes)
            told = await _load_conversations(conn, stand)
        rows = [await _row(conn, size, texts) for size in sizes]
        return rows + ([await _agreement(conn, told)] if told else [])


async def _row(conn: Connection, size: int, texts: "cycle[str]") -> Row:
    recall, scope = Recall(RandomEmbedder()), Scope(TENANT, None, f"{size}")

    async def ours() -> None:
        await recall.search(conn, scope, next(texts), K)

    async def floor() -> None:
        rows = await conn.execute(
            "SELECT chunk FROM memory_vectors WHERE tenant = %s AND thread_id = %s AND id = %s", (TENANT, "a", "b")
        )
        await rows.fetchall()

    await milliseconds(ours, 10)
    mine, theirs = await milliseconds(ours, QUESTIONS), await milliseconds(floor, QUESTIONS)
    return Row(
        f"recall, {size:,} chunks of a user",
        f"{ms(quantile(mine, 0.5))} / {ms(quantile(mine, 0.95))}",
        f"{ms(quantile(theirs, 0.5))} / {ms(quantile(theirs, 0.95))}",
        quantile(mine, 0.5) / quantile(theirs, 0.5),
        None,
        None,
        f"p50 / p95 of {QUESTIONS} different messages as questions, the {K} best turns by words and vectors, without "
        "the query's embedding; random vectors of 384 dimensions. Floor: one look-up by the primary key.",
    )


async def _load_conversations(conn: Connection, stand: Stand) -> list[Conversation]:
    if not stand.conversations.locomo.exists() or not vectors_path().exists():
        return []
    told = load_locomo(stand.conversations.locomo, Vectors(vectors_path()), captions=False)
    for conversation in told:
        assert conversation.scope.vectors is not None
        await copy_chunks(conn, conversation.chunks, conversation.scope.vectors, LISTENER, E5)
    return told


async def _agreement(conn: Connection, told: Sequence[Conversation]) -> Row:
    """Compares the ranking over all chunks of the conversations with the ranking over the candidates from indexes."""
    scope, (ids, whole) = Scope("default", None, LISTENER), _together(told)
    about = await sample_scope(conn, scope, E5, None)
    same, exact, approximate = [], [], []
    for conversation in told:
        for question in conversation.questions[::EVERY]:
            query = Query(question.text, question.vector)
            best = [ids[scored.chunk] for scored in rank(query, whole, K)]
            keys, index = await candidate_chunks(conn, scope, [query], E5, about)
            likely = [keys[scored.chunk][3] for scored in rank(query, index, K)]
            same.append(len(set(best) & set(likely)) / K)
            exact.append(_share(conversation, question, best))
            approximate.append(_share(conversation, question, likely))
    return Row(
        "recall@10 by the path for large scopes, LoCoMo",
        f"{100 * fmean(approximate):.1f} %",
        f"{100 * fmean(exact):.1f} %",
        fmean(approximate) / fmean(exact),
        None,
        None,
        f"{len(same)} questions with real vectors to one user of {whole.count:,} chunks, all five conversations; "
        f"{100 * fmean(same):.0f} % of the ten best chunks are the same ones. Floor: every chunk ranked exactly.",
    )


def _together(told: Sequence[Conversation]) -> tuple[list[str], ScopeIndex]:
    """Returns all conversations as one scope, with the ids of its chunks."""
    ordered = sorted(told, key=lambda conversation: conversation.name)
    chunks = [chunk for conversation in ordered for chunk in conversation.chunks]
    vectors = [conversation.scope.vectors for conversation in ordered if conversation.scope.vectors is not None]
    index = ScopeIndex.of_chunks(
        Chunks.of(
            texts=[chunk.text for chunk in chunks],
            terms=[chunk.terms for chunk in chunks],
            speakers=[chunk.speaker for chunk in chunks],
            times=[chunk.created_at for chunk in chunks],
            vectors=np.concatenate(vectors),
        ),
        threads=[chunk.thread for chunk in chunks],
    )
    return [chunk.id for chunk in chunks], index


def _share(conversation: Conversation, question: Question, ids: Sequence[str]) -> float:
    sources = {s for chunk in conversation.chunks if chunk.id in ids for s in chunk.source_ids}
    return len(question.evidence & sources) / len(question.evidence)
