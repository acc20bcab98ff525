"""Prepares an answer: builds the model's context from the conversation and the user's memories.

Memories are searched on a separate connection while the conversation is read.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from turnlog.agent.answering.pieces import Seen
from turnlog.agent.answering.thread_context import Transcripts, receipt_settings, thread_context
from turnlog.agent.context import Context, ContextReceipt, counter_for
from turnlog.agent.models.protocol import asker_of
from turnlog.agent.recall.episodes import EPISODES, Relevant, relevant_turns
from turnlog.agent.recall.memory_block import MemoryBlock, recalled_block, room
from turnlog.agent.recall.memory_search import memory_recall_of
from turnlog.agent.recall.other_threads import NEW_BELOW, other_turns, with_turns
from turnlog.agent.recall.search import recall_of
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import KnownOfUser, ReceiptSettings
from turnlog.events.local_time import local, zone_or
from turnlog.events.subjects import memory_thread
from turnlog.events.texts import storable
from turnlog.projectors.engine.lag import degraded_by_rebuild
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.thread_lookup import Overview, thread_overview
from turnlog.projectors.models.memories.lookup import keeps_secrets, preferences_set

READS = ("messages", "checkpoints", "summaries", "topics", "vectors")
READING = 8  # contexts prepared at once; each takes up to two of the pool's 16 connections


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """The request for a context.

    question: the text for which memories and older turns are searched. query: a question that is not on the log yet,
    shown last. as_of_seq: the last event to show, which the read models have applied; None shows all and `query`.
    turn_id: id of the turn that is answered; a query gets a new one. asked_seq: sequence of the question's turn if it
    is on the log. user: the user whose memories are added. window: the model's window in tokens; None means that of the
    settings. tokens: instead of window, the limit for all messages. relevant: number of older episodes to prefer if not
    everything fits. answer_tokens: maximum number of tokens in the answer; 0 if unknown. turns, places, notes: see
    thread_context.
    """

    tenant: str
    thread: str
    user: str | None
    question: str
    now: datetime
    model: str
    system_prompt: str
    tools: Sequence[dict[str, Any]] = ()
    query: str | None = None
    as_of_seq: int | None = None
    turn_id: UUID | None = None
    asked_seq: int | None = None
    window: int | None = None
    tokens: int | None = None
    relevant: int = EPISODES
    answer_tokens: int = 0
    turns: Sequence[Message] | None = None
    places: Mapping[int, int] | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class AnswerBasis:
    """The context and settings of an answer, which its receipt records.

    turn_id: id of the turn that is answered. question: text of that turn if it was not on the log yet when the context
    was built, otherwise None. question_seq: a placeholder in `context` for the sequence that this turn will get. notes:
    texts of the caller's notes and of the memories; None if the context can be rebuilt from the thread as of its
    sequence.
    """

    tenant: str
    thread: str
    user: str | None
    context: ContextReceipt
    system_prompt: str
    settings: ReceiptSettings
    turn_id: UUID
    question: str | None = None
    question_seq: int = 0
    notes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A context that is ready for a model. context: messages for the OpenAI chat API, tiers, budget and window in
    tokens. degraded: why the context may be incomplete, for example after a search without vectors; None if nothing is
    missing."""

    context: Context
    receipt: AnswerBasis
    degraded: str | None = None

    @property
    def seen(self) -> Seen:
        """Returns the piece that shows the model's context to the person who asks."""
        context = self.context
        tiers = [
            {"tier": tier.tier, "tokens": tier.tokens, "limit": tier.limit, "turns": len(tier.items)}
            for tier in context.tiers
        ]
        return Seen(tiers, list(context.receipt.memories), context.receipt.dropped.count, self.degraded)


@asynccontextmanager
async def context_connection(runtime: Runtime) -> AsyncIterator[Connection]:
    """Yields a connection for `prepare` to at most READING contexts at once, so that each can get a second connection
    for memories."""
    async with runtime.cached(_turns_to_read), runtime.pool.connection() as conn:
        yield conn


async def prepare(runtime: Runtime, conn: Connection, request: ContextRequest) -> Prepared:
    """Builds the context. The read models must have applied the thread's events, and `conn` must come from
    context_connection().

    Raises NotFound if the thread has no messages or has not reached as_of_seq, WindowTooSmall.
    """
    place = (request.tenant, request.thread)
    overview = await thread_overview(conn, *place)
    older = _OlderTurns(runtime, conn, request, Scope(*place, parents=overview.parents))
    searching = asyncio.create_task(_memory_block(runtime, request, overview), name="memories")
    try:
        context = await thread_context(
            conn,
            runtime.settings,
            *place,
            transcripts=runtime.cached(_transcripts),
            query=request.query,
            user=request.user,
            window=request.window,
            model=request.model,
            system_prompt=request.system_prompt,
            tools=request.tools,
            overview=overview,
            tokens=request.tokens,
            log=runtime.log,
            as_of_seq=request.as_of_seq,
            relevant=older.turns if request.relevant else (),
            memories=searching,
            answer_tokens=request.answer_tokens,
            turns=request.turns,
            places=request.places,
            notes=request.notes,
        )
        reasons = [reason for reason in (older.degraded, await degraded_by_rebuild(conn, READS)) if reason]
        basis = AnswerBasis(
            *place,
            request.user,
            context.receipt,
            request.system_prompt,
            receipt_settings(runtime.settings),
            turn_id=request.turn_id or uuid7(),
        )
        if request.query is not None:
            basis = replace(basis, question=storable(request.query), question_seq=context.receipt.as_of_seq)
        if request.query is not None or request.turns is not None or request.notes:
            known = (str(wire["content"]) for wire in (await searching).messages)
            basis = replace(basis, notes=(*request.notes, *known))
        return Prepared(context, basis, "; ".join(reasons) or None)
    finally:
        searching.cancel()  # not needed if the thread could not be read


async def _memory_block(runtime: Runtime, request: ContextRequest, thread: Overview) -> MemoryBlock:
    settings, window = runtime.settings, request.window if request.tokens is None else request.tokens
    if not request.user or not settings.long_term:
        return MemoryBlock()
    await runtime.embedder()
    async with runtime.pool.connection() as conn:
        block = await recalled_block(
            conn,
            memory_recall_of(runtime, asker_of(request.tenant, request.user)),
            settings,
            request.tenant,
            request.user,
            request.question,
            request.now,
            request.model,
            window,
            thread.count,
        )
        if thread.pruned_through or thread.count >= NEW_BELOW or not request.question.strip():
            return block
        preferences = await preferences_set(conn, request.tenant, memory_thread(request.user))
        if preferences.enable_memory is False:
            return block
        now = local(request.now, zone_or(preferences.timezone, settings.zone))
        about = (request.tenant, request.thread, request.user, request.question, now)
        recall = recall_of(runtime, asker_of(request.tenant, request.user))
        turns = await other_turns(conn, recall, *about, keeps_secrets(preferences, settings.remember_secrets))
        limit = room(settings.context_window if window is None else window, request.model)
        known = KnownOfUser(message_count=thread.count)
        return with_turns(block, turns, counter_for(request.model), limit, known)


@dataclass(slots=True)
class _OlderTurns:
    """Finds the turns that are relevant to the question, best first. degraded: why the search was made without vectors;
    None before a search, or if it used them."""

    runtime: Runtime
    conn: Connection
    request: ContextRequest
    scope: Scope
    degraded: str | None = None

    async def turns(self) -> Relevant:
        await self.runtime.embedder()
        request = self.request
        recall = recall_of(self.runtime, asker_of(request.tenant, request.user or request.thread))
        recent = self.runtime.settings.full_recent_count
        about = (request.question, request.relevant, recent, request.asked_seq)
        relevant = await relevant_turns(self.conn, recall, self.scope, *about)
        self.degraded = recall.degraded
        return relevant


def _transcripts(_runtime: Runtime) -> Transcripts:
    return Transcripts()


def _turns_to_read(_runtime: Runtime) -> asyncio.Semaphore:
    return asyncio.Semaphore(READING)
