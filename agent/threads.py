"""From the read models to a context: the state of a thread, its summary and topics, in two questions."""

from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from turnlog.agent.context import Context, ContextInput, ContextSettings, Summary, build_context
from turnlog.agent.memories.block import MemoryBlock
from turnlog.agent.past import past_state
from turnlog.agent.settings import Settings
from turnlog.agent.transcripts import Transcripts
from turnlog.events.contracts import ReceiptSettings
from turnlog.events.errors import NotFound
from turnlog.events.log import Log
from turnlog.projectors.message import Message
from turnlog.projectors.messages import messages_at
from turnlog.projectors.thread_lookup import Overview, thread_overview
from turnlog.projectors.writer import Connection


async def thread_context(
    conn: Connection,
    settings: Settings,
    tenant: str,
    thread: str,
    *,
    transcripts: Transcripts | None = None,
    query: str | None = None,
    window: int | None = None,
    model: str | None = None,
    system_prompt: str | None = None,
    tools: Sequence[dict[str, Any]] = (),
    budget: int | None = None,
    log: Log | None = None,
    as_of_seq: int | None = None,
    relevant: Sequence[int] = (),
    memories: Awaitable[MemoryBlock] | MemoryBlock | None = None,
) -> Context:
    """The tiered context of a thread now. query: a user message that is not on the log yet.

    transcripts: what a process that builds many contexts keeps of the threads, so that it reads only new turns.
    as_of_seq, with the log: as it was at that event of the log, whatever came since; the read models must have applied
    it. budget: tokens for the conversation, as a receipt says; None computes it. receipts.rebuilt sets all of it from
    the receipt of an answer. relevant: turns that come first where there is no room for all, best first; pruned ones
    come back for it. memories: the block of long-term memories, waited for only when all else is read.

    Raises NotFound when the thread has no messages or has not come to as_of_seq, WindowTooSmall.
    """
    kept = transcripts or Transcripts()
    if as_of_seq is None:
        now = await thread_overview(conn, tenant, thread)
        messages = await kept.state(conn, tenant, thread, now)
    elif log is None:
        raise ValueError("the past of a thread needs its log")
    else:
        now, messages = await _as_of(conn, log, tenant, thread, as_of_seq, kept)
    pruned = [seq for seq in relevant if seq <= now.pruned_through]
    messages = [*await messages_at(conn, tenant, thread, pruned), *messages]
    if query is not None:
        messages.append(_asked(query, messages))
    if not messages:
        raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
    block = await memories if isinstance(memories, Awaitable) else memories or MemoryBlock()
    return build_context(
        ContextInput(
            messages,
            model or settings.model,
            settings.system_prompt if system_prompt is None else system_prompt,
            tools,
            _summary(now) if settings.enable_summary else None,
            now.topics,
            now.pruned_through,
            settings.context_window if window is None else window,
            as_of_seq=as_of_seq if query is None else None,
            settings=context_settings(settings),
            budget=budget,
            relevant=relevant,
            memories=tuple(str(memory) for memory in block.ids),
            notes=block.messages,
        )
    )


async def _as_of(
    conn: Connection, log: Log, tenant: str, thread: str, seq: int, transcripts: Transcripts
) -> tuple[Overview, list[Message]]:
    """What is read is right when the thread's log ended at the sequence even after the reading."""
    now = await thread_overview(conn, tenant, thread)
    if await log.thread_head(tenant, thread) != seq:
        return await past_state(conn, log, tenant, thread, seq)
    return now, await transcripts.state(conn, tenant, thread, now)


def _summary(now: Overview) -> Summary | None:
    return None if now.summary is None or now.summary_seq is None else Summary(now.summary, now.summary_seq)


def context_settings(settings: Settings) -> ContextSettings:
    return ContextSettings(
        full_recent_count=settings.full_recent_count,
        condensed_tool_max=settings.condensed_tool_max,
        keep_thinking=settings.keep_thinking,
    )


def receipt_settings(settings: Settings) -> ReceiptSettings:
    """What of the settings an answer's receipt keeps."""
    return ReceiptSettings(
        full_recent_count=settings.full_recent_count,
        condensed_tool_max=settings.condensed_tool_max,
        keep_thinking=settings.keep_thinking,
        enable_summary=settings.enable_summary,
    )


def _asked(query: str, messages: Sequence[Message]) -> Message:
    seq = messages[-1].seq + 1 if messages else 1
    query = query.encode(errors="replace").decode()  # a shell may hand over bytes that are no text
    return Message(seq, uuid5(NAMESPACE_OID, f"{seq}:{query}"), "user", query, datetime.now(UTC))
