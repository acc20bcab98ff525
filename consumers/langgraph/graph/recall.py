"""recall: what the answer needs beside the conversation's own messages (seed D 2.1.4, 2.2.5, 2.3.3).

The rolling summary and the topics, older turns that the question is about, and the user's long-term memories: those
that turnlog keeps first, then those that somebody put into the store.
"""

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
from typing import Any, NamedTuple

from langgraph.runtime import Runtime as Run
from langgraph.store.base import BaseStore

from turnlog.agent.context import counter_for
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.memory.deciding.policy import Policy
from turnlog.agent.memory.deciding.writing import utc_now
from turnlog.agent.models.protocol import Embedder
from turnlog.agent.recall.hybrid import hybrid_history
from turnlog.agent.recall.memories import MemoryRecall
from turnlog.agent.recall.memory_block import known_lines, memory_block, memory_text, room
from turnlog.agent.recall.retrieval_context import retrieval_context
from turnlog.agent.recall.search import Recall, TurnReranker
from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.graph.retrieve import item_text
from turnlog.consumers.langgraph.graph.state import ConversationState, RunNode, Update, question, unless_away
from turnlog.events.contracts import KnownOfUser
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.message import Message
from turnlog.projectors.models.store.lookup import memories_of
from turnlog.projectors.models.thread_lookup import Overview, thread_overview

MEMORIES_AT_MOST = 5
UNRANKED = "the newest ones: the store searched without vectors"
_UNKNOWN = Overview(0, 0, 0, None, None, [])


class LongTerm(NamedTuple):
    """Memories as lines, best first, with their ids; what else is known of the user; why vectors took no part, ''
    when they did."""

    lines: list[str]
    ids: list[str]
    known: KnownOfUser | None = None
    degraded: str = ""

    @property
    def others(self) -> list[str]:
        return [*self.known.preferences, *self.known.entities] if self.known else []


NOTHING = LongTerm([], [])


class OlderTurns(NamedTuple):
    """evidence: see ConversationState. degraded: why vectors took no part, '' when they did."""

    messages: list[Message]
    evidence: dict[str, Any] | None = None
    degraded: str = ""


def recall_node(
    pool: Pool, embedder: Embedder | None, settings: Settings, reranker: TurnReranker | None = None
) -> RunNode:
    search, memory_search = Recall(embedder, reranker), MemoryRecall(embedder, Policy.of(settings), zone=settings.zone)
    recent_turns = (settings.full_recent_count + 1) // 2

    async def recall(state: ConversationState, *, runtime: Run[None]) -> Update:
        """Asks all sources at once; one that is away is left out, and `debug` says why."""
        scope = Scope(settings.tenant, state["conversation_id"])
        (now, no_summary), (turns, no_turns), (known, nothing_known), (stored, no_store) = await asyncio.gather(
            unless_away(_overview(pool, scope), _UNKNOWN),
            unless_away(_older_turns(pool, search, scope, question(state["messages"]), recent_turns), OlderTurns([])),
            unless_away(_long_term(pool, memory_search, settings, state), NOTHING),
            unless_away(_memories(runtime.store, state), ([], "")),
        )
        memories, unranked = stored
        problems = {
            "summary": no_summary,
            "turns": no_turns or turns.degraded,
            "long-term memories": nothing_known or known.degraded,
            "memories": no_store or unranked,
        }
        lines = list(dict.fromkeys([*known.lines, *memories]))[: max(MEMORIES_AT_MOST, len(known.lines))]
        lines += known.others
        return {
            "conversation_summary": now.summary if settings.enable_summary else None,
            "summary_seq": now.summary_seq if settings.enable_summary else None,
            "topics": now.topics,
            "pruned_through": now.pruned_through,
            "episodic_memory": episodes(turns.messages),
            "evidence": turns.evidence,
            "memory_context": "\n".join(lines) or None,
            "memory_ids": known.ids,
            "memory_known": known.known.model_dump(mode="json") if known.known else None,
            "debug": state.get("debug", {}) | {f"recall {part}": why for part, why in problems.items() if why},
        }

    return recall


async def _overview(pool: Pool, scope: Scope) -> Overview:
    async with pool.connection() as conn:
        return await thread_overview(conn, scope.tenant, scope.thread or "")


async def _older_turns(pool: Pool, search: Recall, scope: Scope, query: str, recent_turns: int) -> OlderTurns:
    """Questions with their answers from before the newest turns, which the model sees anyway."""
    if not query.strip():
        return OlderTurns([])
    search = copy(search)  # the caches are shared, but what a search says of itself is not: runs are concurrent
    async with pool.connection() as conn:
        history = await hybrid_history(conn, search, scope.tenant, scope.thread or "", query, recent_turns=recent_turns)
    older = [message for message in history.messages if message.seq in history.recalled]
    evidence = asdict(history.evidence) if history.evidence else None
    return OlderTurns(older, evidence, history.degraded or "")


def episodes(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Turns with words in them, as the state keeps them (seed D 2.2.4)."""
    spoken = [(message, content_text(message.content).strip()) for message in messages]
    return [
        {"role": one.name or one.role, "content": text, "timestamp": one.time.isoformat(), "seq": one.seq}
        for one, text in spoken
        if text
    ]


async def _memories(store: BaseStore | None, state: ConversationState) -> tuple[list[str], str]:
    """The nearest memories; without vectors the newest ones, and why."""
    query, user = question(state["messages"]), state["user_id"]
    if store is None or not user or not query.strip():
        return [], ""
    found = await store.asearch(memories_of(user), query=query, limit=MEMORIES_AT_MOST)
    texts = [" ".join(item_text(item.value).split()) for item in found]
    return [text for text in texts if text], UNRANKED if any(item.score is None for item in found) else ""


async def _long_term(pool: Pool, recall: MemoryRecall, settings: Settings, state: ConversationState) -> LongTerm:
    """Nothing without a user or a question, or where MEMORY_LONG_TERM is off."""
    asked, user = question(state["messages"]), state["user_id"]
    if not settings.long_term or not user or not asked.strip():
        return NOTHING
    counter, limit = counter_for(settings.model), room(settings.context_window, settings.model)
    async with pool.connection() as conn:
        top_k = settings.long_term_top_k
        found = await retrieval_context(conn, recall, settings.tenant, user, asked, utc_now(), top_k=top_k)
    block = memory_block(found.shown, counter, limit, known_lines(found, counter))
    rows = [one for one in found.shown if one.id in block.ids]
    lines, ids = [memory_text(row, counter) for row in rows], [str(row.id) for row in rows]
    return LongTerm(lines, ids, block.known, found.degraded or "")
