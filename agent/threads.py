"""From the read models to a context: the state of a thread, its summary and topics, in few indexed queries."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from turnlog.agent.context import Context, ContextInput, ContextSettings, Summary, build_context
from turnlog.agent.settings import Settings
from turnlog.agent.transcripts import Transcripts
from turnlog.events.errors import NotFound
from turnlog.projectors.checkpoints import pruned_through
from turnlog.projectors.message import Message
from turnlog.projectors.messages import thread_messages
from turnlog.projectors.summaries import thread_summary
from turnlog.projectors.topics import thread_topics
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
    through_seq: int | None = None,
) -> Context:
    """The tiered context of a thread now. query: a user message that is not on the log yet.

    transcripts: what a process that builds many contexts keeps of the threads, so that it reads only new turns.

    Raises NotFound when the thread has no messages, WindowTooSmall.
    """
    pruned = await pruned_through(conn, tenant, thread)
    read = transcripts.read if transcripts is not None else thread_messages
    messages = await read(conn, tenant, thread, pruned, through_seq)
    if query is not None:
        messages.append(_asked(query, messages))
    if not messages:
        raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
    summary = await thread_summary(conn, tenant, thread)
    return build_context(
        ContextInput(
            messages,
            model or settings.model,
            settings.system_prompt if system_prompt is None else system_prompt,
            tools,
            Summary(summary.summary, summary.seq) if summary and settings.enable_summary else None,
            await thread_topics(conn, tenant, thread),
            pruned,
            settings.context_window if window is None else window,
            settings=context_settings(settings),
        )
    )


def context_settings(settings: Settings) -> ContextSettings:
    return ContextSettings(
        full_recent_count=settings.full_recent_count,
        condensed_tool_max=settings.condensed_tool_max,
        keep_thinking=settings.keep_thinking,
    )


def _asked(query: str, messages: Sequence[Message]) -> Message:
    seq = messages[-1].seq + 1 if messages else 1
    return Message(seq, uuid5(NAMESPACE_OID, f"{seq}:{query}"), "user", query, datetime.now(UTC))
