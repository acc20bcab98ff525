"""Recalls turns of a thread or of all threads of a user, and memories of the user."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_jsonable_python

from turnlog.agent.context import counter_for
from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.memory.deciding.by_hand import checked_share
from turnlog.agent.memory.deciding.policy import Policy
from turnlog.agent.memory.memories import MemoryView, check_kinds, view_of
from turnlog.agent.models.protocol import asker_of
from turnlog.agent.recall.best_turns import Recalled
from turnlog.agent.recall.confidence import LOW, Evidence
from turnlog.agent.recall.memory_block import memory_line
from turnlog.agent.recall.memory_search import MemoriesFound, MemoryRecall, RecalledMemory
from turnlog.agent.recall.questions import QuestionAnalysis
from turnlog.agent.recall.search import Recall, recall_of
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.local_time import local, now_there
from turnlog.events.subjects import check_place, memory_thread
from turnlog.events.texts import storable
from turnlog.projectors.engine.lag import READ_WHILE_REBUILT, degraded_by_rebuild
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope, topics_in, with_parents
from turnlog.projectors.models.conversation.thread_lookup import is_there
from turnlog.projectors.models.memories.lookup import StoredMemory, is_memory_off, zone_of
from turnlog.projectors.models.memories.memory_candidates import MemoryScope

TOPICS_NAMED = 20
TURN_READS = ("vectors", "thread_activity", "archives")
READS_OF_MEMORIES = ("memories", "entities")


class BadQuery(TurnlogError):
    """A query lacks its text or its scope, or combines options that exclude each other."""

    code = "bad-query"


@dataclass(frozen=True, slots=True)
class FoundMemory:
    """A recalled memory. relevance: its relevance to the question, which decides the order. explain: how it was
    computed, as returned by RecalledMemory.explain."""

    memory: MemoryView
    relevance: float
    explain: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a recall. turns, memories: best first, with the parts of their scores, which explain the order.

    degraded: why turns may be missing, or are ranked without vectors or the reranker; None if nothing failed.
    memories_degraded: why memories were searched without vectors. question: the analysis of the question; None if only
    memories were searched. confidence: the chance, 0 to 1, that something here
    answers the question (agent/recall/confidence.py); None if it cannot be judged.
    """

    turns: list[Recalled]
    memories: list[FoundMemory]
    degraded: str | None = None
    memories_degraded: str | None = None
    question: QuestionAnalysis | None = None
    confidence: float | None = None

    @property
    def is_unsure(self) -> bool:
        return self.confidence is not None and self.confidence < LOW


def recall_document(query: str, result: Found, explain: bool = False) -> dict[str, Any]:
    """Returns the result of a recall as JSON. explain: include the parts of every score and the analysis of the
    question."""
    return {
        "query": query,
        "items": [turn.document(explain) for turn in result.turns],
        "memories": [
            to_jsonable_python(recalled.memory)
            | {"relevance": recalled.relevance}
            | ({"explain": recalled.explain} if explain else {})
            for recalled in result.memories
        ],
        "memories_degraded": result.memories_degraded,
        "degraded": result.degraded,
        "confidence": result.confidence,
        "question": to_jsonable_python(result.question) if explain else None,
    }


async def recall(
    runtime: Runtime,
    tenant: str,
    query: str,
    *,
    user: str | None = None,
    thread: str | None = None,
    topic: str | None = None,
    speaker: str | None = None,
    k: int | None = None,
    as_of: datetime | None = None,
    history: bool = False,
    max_tokens: int | None = None,
    keyword_only: bool = False,
    kinds: Sequence[str] = (),
    min_importance: float = 0.0,
    for_model: bool = False,
) -> Found:
    """Returns the k most relevant turns of the thread or, without a thread, of all threads of the user; with a user, k
    memories too.

    topic: only turns with this topic, ignoring case, and no memories, because they have no topics; a blank query then
    searches for the topic. speaker: only turns said by somebody of this name or by this user, and no memories. as_of:
    only memories that were valid then, and no turns. history: include memories that ended. max_tokens: the most tokens
    that all texts of the result may have together; memories are added before turns. keyword_only: do not use vectors.
    kinds, min_importance (0 to 1): only memories of these kinds with at least this current importance, and no turns. k:
    MEMORY_RECALL_TOP_K by default. for_model: return no memories if the user does not allow them in prompts. An
    archived thread is restored. Raises BadQuery, NotFound, InvalidToken, InvalidMemory for an unknown kind or a
    min_importance that is not between 0 and 1.
    """
    query = storable(query if query.strip() else topic or "")
    is_filtered = bool(kinds) or min_importance > 0
    if speaker is not None and not speaker.strip():
        raise BadQuery("the speaker is blank; leave it out to search the turns of all")
    _check(
        tenant, query, user, thread, topic if speaker is None else speaker, as_of is not None or history or is_filtered
    )
    check_kinds(kinds)
    checked_share("min_importance", min_importance)
    k = k or runtime.settings.recall_top_k
    await _wait_until_projected(runtime, tenant, user, thread)
    if not keyword_only:
        await runtime.embedder()
    search = recall_of(runtime, asker_of(tenant, user or thread or ""), keyword_only)
    async with runtime.pool.connection() as conn:
        zone = runtime.settings.zone if user is None else await zone_of(conn, tenant, user, runtime.settings.zone)
        is_off = for_model and user is not None and await is_memory_off(conn, tenant, memory_thread(user))
    now = local(now_there(), zone)

    async def remembered() -> MemoriesFound:
        if user is None or topic is not None or speaker is not None or is_off:
            return MemoriesFound()
        scope = MemoryScope(tenant, memory_thread(user), now, as_of, history, tuple(kinds), min_importance)
        async with runtime.pool.connection() as conn:
            return await _memories(runtime, conn, scope, user, query, k, max_tokens, keyword_only)

    async def said() -> tuple[list[Recalled], str | None]:
        turns: list[Recalled] = []
        async with runtime.pool.connection() as conn:
            if as_of is None and not is_filtered:
                scope = Scope(tenant, thread, user if thread is None else None, topic, speaker)
                turns = await _turns(conn, search, scope, query, k, now)
            rebuilt = await degraded_by_rebuild(conn, TURN_READS)
            if rebuilt is not None:  # chunks of a thread that was deleted meanwhile may remain
                turns = [turn for turn in turns if await is_there(conn, tenant, turn.thread)]
        return turns, rebuilt

    known, (turns, rebuilt) = await asyncio.gather(remembered(), said())
    memories = list(known.memories)
    fitting = _that_fit(runtime, turns, memories, max_tokens)
    policy = Policy.of(runtime.settings)
    shown = [
        FoundMemory(view_of(recalled.memory, now, policy), round(recalled.rank.score, 6), recalled.explain())
        for recalled in memories
    ]
    sure = None if topic is not None else _confidence(search.evidence, memories)
    degraded = "; ".join(reason for reason in (search.degraded, rebuilt) if reason) or None
    return Found(fitting, shown, degraded, known.degraded, search.question, sure)


def _confidence(evidence: Evidence | None, memories: Sequence[RecalledMemory]) -> float | None:
    """Returns the confidence. The memories count too, because one entered by hand may state something that no turn
    states."""
    if evidence is None:
        return None
    return round(evidence.also_in(recalled.memory.content for recalled in memories).confidence, 3)


async def _wait_until_projected(runtime: Runtime, tenant: str, user: str | None, thread: str | None) -> None:
    if user is not None:
        await runtime.wait_until_thread_projected(tenant, memory_thread(user), READS_OF_MEMORIES)
    if thread is None:
        await runtime.wait_until_projected(names=TURN_READS, without=READ_WHILE_REBUILT, turns_of=tenant)
        return
    async with runtime.reading(*TURN_READS, of=(tenant, thread), without=READ_WHILE_REBUILT) as conn:
        await restored_if_archived(runtime, conn, tenant, thread)


async def _turns(conn: Connection, search: Recall, scope: Scope, query: str, k: int, now: datetime) -> list[Recalled]:
    zone = now.tzinfo or UTC
    turns = await search.search(conn, scope, query, k, now=now, zone=zone)
    turns = [replace(turn, time=local(turn.time, zone)) for turn in turns]
    if not turns and scope.thread is not None and not await is_there(conn, scope.tenant, scope.thread):
        raise NotFound(f"there is no thread {scope.thread!r}; `turnlog threads` lists them")
    if not turns and scope.topic is not None:
        raise NotFound(await _no_topic(conn, scope))
    return turns


async def _no_topic(conn: Connection, scope: Scope) -> str:
    known = await topics_in(conn, await with_parents(conn, replace(scope, topic=None)), TOPICS_NAMED)
    there = f"the most common ones here: {', '.join(known)}" if known else "topics come with every ten turns"
    return f"no turn has the topic {scope.topic!r}; {there}"


async def _memories(
    runtime: Runtime,
    conn: Connection,
    scope: MemoryScope,
    user: str,
    query: str,
    k: int,
    max_tokens: int | None,
    keyword_only: bool,
) -> MemoriesFound:
    settings = runtime.settings
    counter = counter_for(settings.model)
    embedder = None if keyword_only else await runtime.embedder()

    def tokens_of(memory: StoredMemory) -> int:
        return counter.text(memory_line(memory, counter))

    search = MemoryRecall(embedder, Policy.of(settings), zone=settings.zone, asker=asker_of(scope.tenant, user))
    return await search.search(conn, scope, query, k, max_tokens=max_tokens, tokens_of=tokens_of)


def _that_fit(
    runtime: Runtime, turns: list[Recalled], memories: list[RecalledMemory], max_tokens: int | None
) -> list[Recalled]:
    """Returns the turns that fit into the part of `max_tokens` that the memories leave."""
    if max_tokens is None:
        return turns
    counter = counter_for(runtime.settings.model)
    left = max_tokens - sum(counter.text(memory_line(recalled.memory, counter)) for recalled in memories)
    kept = []
    for turn in turns:
        cost = counter.text(turn.text)
        if cost <= left:
            left -= cost
            kept.append(turn)
    return kept


def _check(tenant: str, query: str, user: str | None, thread: str | None, topic: str | None, of_memories: bool) -> None:
    check_place(tenant, thread, user)
    if not query.strip():
        raise BadQuery("give a question: there is nothing to look for in a blank one")
    if thread is None and user is None:
        raise BadQuery("name where to look: a thread, or a user for all of theirs")
    if topic is not None and not topic.strip():
        raise BadQuery("the topic is blank; leave it out to search all turns")
    if topic is not None and of_memories:
        raise BadQuery("as_of, history, kinds and min_importance are about memories, not topics or speakers")
    if of_memories and user is None:
        raise BadQuery("as_of, history, kinds and min_importance are about memories: say whose with user")
