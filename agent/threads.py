"""From the read models to a context: the state of a thread, its summary and topics, in two questions."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from turnlog.agent.context import Context, ContextInput, ContextSettings, Summary, build_context
from turnlog.agent.settings import Settings
from turnlog.agent.transcripts import Transcripts
from turnlog.events.errors import NotFound
from turnlog.projectors.message import Message
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
    through_seq: int | None = None,
) -> Context:
    """The tiered context of a thread now. query: a user message that is not on the log yet.

    transcripts: what a process that builds many contexts keeps of the threads, so that it reads only new turns.

    Raises NotFound when the thread has no messages, WindowTooSmall.
    """
    now = await thread_overview(conn, tenant, thread)
    messages = await (transcripts or Transcripts()).state(conn, tenant, thread, now)
    if through_seq is not None:
        messages = [message for message in messages if message.seq <= through_seq]
    if query is not None:
        messages.append(_asked(query, messages))
    if not messages:
        raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
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
            settings=context_settings(settings),
        )
    )


def _summary(now: Overview) -> Summary | None:
    return None if now.summary is None or now.summary_seq is None else Summary(now.summary, now.summary_seq)


def context_settings(settings: Settings) -> ContextSettings:
    return ContextSettings(
        full_recent_count=settings.full_recent_count,
        condensed_tool_max=settings.condensed_tool_max,
        keep_thinking=settings.keep_thinking,
    )


def _asked(query: str, messages: Sequence[Message]) -> Message:
    seq = messages[-1].seq + 1 if messages else 1
    query = query.encode(errors="replace").decode()  # a shell may hand over bytes that are no text
    return Message(seq, uuid5(NAMESPACE_OID, f"{seq}:{query}"), "user", query, datetime.now(UTC))
