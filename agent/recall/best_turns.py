"""Selects the best turns for each part of a question from the ranked chunks that contain them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from turnlog.agent.recall.confidence import Evidence, evidence_for
from turnlog.agent.recall.loaded_scope import LoadedScope
from turnlog.agent.recall.questions import QuestionAnalysis
from turnlog.agent.recall.ranking import Query, Scored, rank_parts
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.candidates import found_at
from turnlog.projectors.models.chunks.lookup import Found, Scope


@dataclass(frozen=True, slots=True)
class Recalled:
    """A turn that recall found. score: the sum of `parts`. chunk_id: the id of the ranked chunk that contains it.

    asked: number of the part of the question for which it was found, from 1. rerank: a reranker's score, which then
    decides the order; None without a reranker.
    """

    thread: str
    seq: int
    event_id: UUID
    source_id: str | None
    speaker: str
    text: str
    time: datetime
    score: float
    parts: dict[str, float]
    chunk_id: str
    asked: int = 1
    rerank: float | None = None

    def document(self, explain: bool = False) -> dict[str, Any]:
        shown = {
            "source_id": self.source_id,
            "event_id": str(self.event_id),
            "seq": self.seq,
            "thread": self.thread,
            "speaker": self.speaker,
            "time": self.time.isoformat(),
            "score": round(self.score, 6),
            "text": self.text,
        }
        if not explain:
            return shown
        parts = {k: round(v, 6) for k, v in self.parts.items()}
        return {**shown, "asked": self.asked, "parts": parts, "chunk_id": self.chunk_id, "rerank": self.rerank}


@dataclass(frozen=True, slots=True)
class BestTurns:
    """The turns found for a part of the question, best first, and the evidence for an answer."""

    turns: list[Recalled]
    evidence: Evidence | None


async def best_turns(
    conn: Connection,
    scope: Scope,
    queries: Sequence[Query],
    question: QuestionAnalysis,
    loaded: LoadedScope,
    k: int,
    before_seq: int | None,
    without: Collection[str],
) -> list[BestTurns]:
    """Returns the k best turns for each part. A turn with several pieces counts once, so more than k chunks may be
    needed; if necessary, all chunks are ranked."""
    allowed = loaded.allowed(before_seq, without)
    wanted = 2 * k
    while True:
        ranked = rank_parts(queries, loaded.index, wanted, allowed=allowed)
        by_part = [_turns(scored, await _chunks(conn, scope, loaded, scored), k, before_seq) for scored in ranked]
        if all(len(turns) == k for turns in by_part) or wanted >= loaded.index.count:
            first = [scored[0].chunk if scored else None for scored in ranked]
            return [
                BestTurns(turns, evidence_for(part.undated, loaded.index, best, allowed))
                for turns, part, best in zip(by_part, question.parts, first, strict=True)
            ]
        wanted = loaded.index.count


async def _chunks(conn: Connection, scope: Scope, loaded: LoadedScope, ranked: Sequence[Scored]) -> list[Found]:
    """Returns the ranked chunks; the chunks of a large scope are only read here."""
    if loaded.chunks is not None:
        return [loaded.chunks[scored.chunk] for scored in ranked]
    return await found_at(conn, scope, [loaded.keys[scored.chunk] for scored in ranked])


def _turns(ranked: Sequence[Scored], chunks: Sequence[Found], k: int, before_seq: int | None) -> list[Recalled]:
    """Returns up to k turns before the sequence. Several pieces of one turn become one entry; a chunk of several turns
    becomes several entries."""
    turns: list[Recalled] = []
    seen: set[tuple[str, int]] = set()
    for scored, chunk in zip(ranked, chunks, strict=True):
        for seq, event_id, source_id in zip(chunk.seqs, chunk.event_ids, chunk.source_ids, strict=True):
            if len(turns) == k:
                return turns
            if (chunk.thread, seq) in seen or (before_seq is not None and seq >= before_seq):
                continue
            seen.add((chunk.thread, seq))
            turns.append(
                Recalled(
                    chunk.thread,
                    seq,
                    event_id,
                    source_id,
                    chunk.speaker,
                    chunk.text,
                    chunk.created_at,
                    scored.score,
                    dict(scored.parts),
                    chunk.id,
                )
            )
    return turns
