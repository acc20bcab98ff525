"""Builds a thread's context from its messages, summary and topics in the read models, in two queries."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar
from uuid import NAMESPACE_OID, uuid5

from cachetools import LRUCache

from turnlog.agent.context import (
    Context,
    ContextInput,
    ContextSettings,
    Summary,
    WindowTooSmall,
    counter_for,
    prepared,
)
from turnlog.agent.context.plain_text import content_text, with_speakers
from turnlog.agent.context.tokens import REPLY_PRIMING
from turnlog.agent.context.window import MIN_BUDGET
from turnlog.agent.context.wire import Wire
from turnlog.agent.conversations.past import past_state
from turnlog.agent.recall.confidence import doubt as doubt_about
from turnlog.agent.recall.episodes import Relevant
from turnlog.agent.recall.memory_block import MemoryBlock
from turnlog.agent.settings import Settings
from turnlog.events.contracts import ReceiptSettings
from turnlog.events.errors import NotFound
from turnlog.events.local_time import now_there
from turnlog.events.log import Log
from turnlog.events.personal_data_caches import holds_words
from turnlog.events.texts import storable
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message, messages_at, thread_messages
from turnlog.projectors.models.conversation.thread_lookup import Overview, thread_overview

T = TypeVar("T")
KEPT_MESSAGES = 50_000
MANY_TURNS = 1_000
_LONG_CONTEXTS = ThreadPoolExecutor(1, "turnlog-long-contexts")
FindRelevant = Callable[[], Awaitable[Relevant]]


class Transcripts:
    """Caches the turns of threads, and reads only newer ones. If their number then differs from Postgres, for example
    after a removal, the whole thread is read again.
    """

    def __init__(self, keep: int = KEPT_MESSAGES) -> None:
        """Keeps at most `keep` messages over all threads; the least recently read threads are dropped first."""
        self._threads: LRUCache[tuple[str, str], list[Message]] = LRUCache(keep, getsizeof=len)
        holds_words(self)

    def forget_all(self) -> None:
        self._threads.clear()

    async def state(self, conn: Connection, tenant: str, thread: str, now: Overview) -> list[Message]:
        """Returns the turns of a thread that are not pruned, oldest first, as a new list. now: its overview."""
        known = [m for m in self._threads.get((tenant, thread), ()) if now.pruned_through < m.seq <= now.last_seq]
        newest = known[-1].seq if known else now.pruned_through
        if newest < now.last_seq:
            known += await thread_messages(conn, tenant, thread, newest, now.last_seq)
        if len(known) != now.count:
            known = await thread_messages(conn, tenant, thread, now.pruned_through, now.last_seq)
        with contextlib.suppress(ValueError):  # longer than the whole cache
            self._threads[tenant, thread] = known
        return list(known)


async def thread_context(
    conn: Connection,
    settings: Settings,
    tenant: str,
    thread: str,
    *,
    transcripts: Transcripts | None = None,
    query: str | None = None,
    user: str | None = None,
    window: int | None = None,
    model: str | None = None,
    system_prompt: str | None = None,
    tools: Sequence[dict[str, Any]] = (),
    overview: Overview | None = None,
    budget: int | None = None,
    tokens: int | None = None,
    log: Log | None = None,
    as_of_seq: int | None = None,
    relevant: Sequence[int] | FindRelevant = (),
    memories: Awaitable[MemoryBlock] | MemoryBlock | None = None,
    answer_tokens: int = 0,
    turns: Sequence[Message] | None = None,
    places: Mapping[int, int] | None = None,
    notes: Sequence[str] = (),
) -> Context:
    """Returns the tiered context of a thread now. query: a message of `user` that is not on the log yet.

    transcripts: the cache of a process that builds many contexts, so that it reads only new turns. overview: that of
    the thread, if the caller has read it. as_of_seq: together with `log`, the event as of which to build the context;
    the read models must have applied it. budget: tokens for the conversation, as in a receipt; None computes it.
    receipts.rebuilt sets all of these from the receipt of an answer. tokens: instead of budget, the limit for all
    messages, including the system prompt. relevant: turns to prefer if not everything fits, best first, including
    pruned turns; a function is called only in this case, and if the turns that it finds hardly answer the question, a
    line of the context says so. memories: the block of long-term memories, awaited after the turns are read.
    answer_tokens: maximum number of tokens in the answer; 0 if unknown. turns: the conversation, if the caller keeps
    it, as LangGraph does. places: {sequence: position} of all turns of the thread, if `turns` are some of them. notes:
    the caller's notes, shown before the memories.

    Raises NotFound if the thread has no messages or has not reached as_of_seq, WindowTooSmall.
    """
    if turns is None:
        now, messages = await _state(conn, log, tenant, thread, as_of_seq, transcripts or Transcripts(), overview)
    else:
        now, messages = overview or await thread_overview(conn, tenant, thread), list(turns)
    if query is not None:
        messages.append(_asked(query, messages, user))
    if not messages:
        raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
    messages = with_speakers(messages)
    block = await memories if isinstance(memories, Awaitable) else memories or MemoryBlock()
    model, prompt = model or settings.model, settings.system_prompt if system_prompt is None else system_prompt
    is_summarised = settings.enable_summary and now.summary is not None and now.summary_seq is not None
    summary = Summary(now.summary or "", now.summary_seq or 0) if is_summarised else None
    inputs = ContextInput(
        messages,
        model,
        prompt,
        tools,
        summary,
        now.topics,
        now.pruned_through,
        settings.context_window if window is None else window,
        as_of_seq=as_of_seq if query is None else None,
        settings=context_settings(settings),
        budget=budget if tokens is None else _budget(tokens, model, prompt, tools, block),
        recalled_chunks=(block.known and block.known.turns) or (),
        memories=tuple(str(memory) for memory in block.ids),
        known=block.known,
        notes=[*({"role": "user", "content": note} for note in notes), *block.all_messages],
        answer_tokens=answer_tokens,
        places=places,
    )
    return await _with_relevant(conn, tenant, thread, now, inputs, relevant, block)


def _budget(tokens: int, model: str, prompt: str, tools: Sequence[dict[str, Any]], block: MemoryBlock) -> int:
    """Returns the part of `tokens` that is left for the conversation. Raises WindowTooSmall."""
    counter = counter_for(model)
    others: list[Wire] = [{"role": "system", "content": prompt}] if prompt else []
    spent = REPLY_PRIMING + counter.tools(tools) + sum(map(counter.wire, (*others, *block.all_messages)))
    if tokens - spent < MIN_BUDGET:
        raise WindowTooSmall(
            f"{tokens:,} tokens have no room for the conversation: the system prompt, the tools and the memories take "
            f"{spent:,}; allow more tokens or shorten the prompt"
        )
    return tokens - spent


async def _state(
    conn: Connection,
    log: Log | None,
    tenant: str,
    thread: str,
    seq: int | None,
    transcripts: Transcripts,
    overview: Overview | None,
) -> tuple[Overview, list[Message]]:
    """Returns a thread's overview and turns. As of a sequence, they come from the read models if the thread still ends
    at it, otherwise from the past in the log."""
    now = overview or await thread_overview(conn, tenant, thread)
    if seq is not None:
        if log is None:
            raise ValueError("the past of a thread needs its log")
        if await log.thread_head(tenant, thread) != seq:
            return await past_state(conn, log, tenant, thread, seq)
    return now, await transcripts.state(conn, tenant, thread, now)


async def _with_relevant(
    conn: Connection,
    tenant: str,
    thread: str,
    now: Overview,
    inputs: ContextInput,
    relevant: Sequence[int] | FindRelevant,
    block: MemoryBlock,
) -> Context:
    """Returns the context with relevant turns preferred; they are searched for only if not everything fits."""
    if isinstance(relevant, Sequence):
        pruned = await _pruned(conn, tenant, thread, relevant, now)
        inputs = replace(inputs, messages=[*pruned, *inputs.messages], relevant=relevant)
        return await _computed(inputs, lambda: prepared(inputs).context())
    made = None if now.pruned_through else await _computed(inputs, lambda: prepared(inputs))
    if made is not None and made.fits:
        return await _computed(inputs, made.context)
    relevant_turns = await relevant()
    doubt = _doubt(relevant_turns, inputs.messages, block, inputs.settings.full_recent_count)
    if made is None:
        known = {message.seq for message in inputs.messages}  # turns of LangGraph may include pruned turns
        pruned = await _pruned(conn, tenant, thread, [seq for seq in relevant_turns.seqs if seq not in known], now)
        whole = replace(inputs, messages=[*pruned, *inputs.messages])
        made = await _computed(whole, lambda: prepared(whole))
    chosen = made
    return await _computed(inputs, lambda: chosen.with_relevant(relevant_turns.seqs, doubt).context())


async def _computed(inputs: ContextInput, compute: Callable[[], T]) -> T:
    """Returns the result of `compute`, which runs in a separate thread if many turns would block the event loop for
    long. There is only one such thread, because the loop waits for the interpreter lock of every computing thread after
    each system call."""
    if len(inputs.messages) <= MANY_TURNS:
        return compute()
    return await asyncio.get_running_loop().run_in_executor(_LONG_CONTEXTS, compute)


async def _pruned(conn: Connection, tenant: str, thread: str, relevant: Sequence[int], now: Overview) -> list[Message]:
    """Returns the relevant turns that were pruned."""
    return await messages_at(conn, tenant, thread, [seq for seq in relevant if seq <= now.pruned_through])


def _doubt(relevant: Relevant, messages: Sequence[Message], block: MemoryBlock, recent: int) -> str | None:
    """Returns a line that says that the turns hardly answer the question, or None.

    The search leaves out the newest turns, which are shown anyway, and the question, which is one of them.
    """
    newest = [content_text(message.content) for message in messages[-recent - 1 :]]
    noted = [line for wire in block.all_messages for line in str(wire["content"]).splitlines()]
    return doubt_about(
        relevant.evidence, relevant.query, [text for text in [*newest, *noted] if text != relevant.query]
    )


def context_settings(settings: Settings) -> ContextSettings:
    return ContextSettings(
        full_recent_count=settings.full_recent_count,
        condensed_tool_max=settings.condensed_tool_max,
        keep_thinking=settings.keep_thinking,
        share_unused=not settings.strict_tiers,
    )


def receipt_settings(settings: Settings) -> ReceiptSettings:
    """Returns the part of the settings that an answer's receipt keeps."""
    return ReceiptSettings(
        full_recent_count=settings.full_recent_count,
        condensed_tool_max=settings.condensed_tool_max,
        keep_thinking=settings.keep_thinking,
        enable_summary=settings.enable_summary,
        strict_tiers=settings.strict_tiers or None,
    )


def _asked(query: str, messages: Sequence[Message], user: str | None) -> Message:
    seq = messages[-1].seq + 1 if messages else 1
    query = storable(query)
    return Message(seq, uuid5(NAMESPACE_OID, f"{seq}:{query}"), "user", query, now_there(), user=user)
