"""Offers the operations of sessions, the short-term memory of a conversation, as single calls; a long-running program
uses ShortTermMemory.

Every function raises InvalidToken for an invalid id and NotProjectedInTime. Every function except those that create a
session raises NotFound for a conversation without a session.
"""

import contextlib
from collections.abc import AsyncIterator

from pydantic import ValidationError

from turnlog.agent.conversations.sessions.session_memory import ShortTermMemory
from turnlog.agent.conversations.sessions.value import (
    InvalidMemoryRequest,
    MemoryContext,
    MemoryCreateRequest,
    MemoryQueryRequest,
    MemoryWriteRequest,
    MemoryWriteResult,
    SessionValue,
    settable,
)
from turnlog.agent.conversations.sessions.value import SessionChanges as SessionChanges
from turnlog.agent.runtime import Runtime
from turnlog.events.subjects import check_conversation, check_id, check_tenant
from turnlog.projectors.models.sessions.lookup import SegmentCheckpoint

READS = ("sessions", "messages")


async def create_session(
    runtime: Runtime,
    tenant: str,
    conversation: str,
    user: str | None = None,
    *,
    window: int | None = None,
    threshold: float | None = None,
    recent_turns: int | None = None,
) -> SessionValue:
    """Begins a session that includes the earlier turns; an existing session restarts without them.

    user: None means the first user who speaks. window: tokens of the model's window. threshold: the share of the window
    that makes a summary due, more than 0 and at most 1. recent_turns: number of newest turns that stay complete after a
    summary. None means the value of the settings. Raises NotFound for another user's conversation, and ValidationError
    (of pydantic) for a number that is out of range.
    """
    check_conversation(conversation)
    if user is not None:
        check_id("user", user)
    request = MemoryCreateRequest(
        conversation_id=conversation,
        user_id=user,
        token_threshold_ratio=threshold,
        recent_turns=recent_turns,
        model_context_window=window,
    )
    return await create_requested(runtime, tenant, request)


async def create_requested(runtime: Runtime, tenant: str, request: MemoryCreateRequest) -> SessionValue:
    """Creates a session like create_session, but takes all fields of the request."""
    async with _memory(runtime, tenant) as memory:
        return await memory.create(request)


async def show_session(runtime: Runtime, tenant: str, conversation: str) -> SessionValue:
    async with _memory(runtime, tenant) as memory:
        return await memory.get(conversation)


async def session_context(runtime: Runtime, tenant: str, conversation: str, query: str = "") -> MemoryContext:
    """Returns the history for a prompt, and requests a summary if one is due. query: the user's next words, whose
    tokens count too."""
    check_id("thread", conversation)
    return await query_memory(runtime, tenant, MemoryQueryRequest(conversation_id=conversation, query=query))


async def query_memory(runtime: Runtime, tenant: str, request: MemoryQueryRequest) -> MemoryContext:
    """Returns the history like session_context, but takes all fields of the request."""
    async with _memory(runtime, tenant) as memory:
        return await memory.query_memory_context(request)


async def write_turn(runtime: Runtime, tenant: str, request: MemoryWriteRequest) -> MemoryWriteResult:
    """Appends a question, its answer or both to the session's conversation. Raises InvalidMemoryRequest if both are
    empty."""
    async with _memory(runtime, tenant) as memory:
        return await memory.write_turn(request)


async def change_session(
    runtime: Runtime, tenant: str, conversation: str, changes: SessionChanges | SessionValue
) -> SessionValue:
    """Changes the current agent, slots, intent and pending action, or the user snapshot. A SessionValue replaces these
    parts; its other parts are ignored, because they are derived from the conversation.

    Raises InvalidMemoryRequest if a changed part is not valid.
    """

    def changed(session: SessionValue) -> SessionValue:
        try:
            return settable(changes, session) if isinstance(changes, SessionValue) else changes.of(session)
        except ValidationError as error:
            raise InvalidMemoryRequest(f"the changed session is not valid: {error}") from error

    async with _memory(runtime, tenant) as memory:
        return await memory.update(conversation, changed)


async def list_checkpoints(runtime: Runtime, tenant: str, conversation: str) -> list[SegmentCheckpoint]:
    """Returns the checkpoints, oldest first."""
    async with _memory(runtime, tenant) as memory:
        return await memory.checkpoints(conversation)


async def write_checkpoint(
    runtime: Runtime, tenant: str, conversation: str, summary: str, recent_turns: int | None = None
) -> SessionValue:
    """Ends the segment with this summary of every turn except the last `recent_turns` (None means the session's rule).

    Raises InvalidMemoryRequest for a summary that is empty or too long, or a negative recent_turns.
    """
    async with _memory(runtime, tenant) as memory:
        return await memory.checkpoint(conversation, summary, recent_turns)


async def reset_session(runtime: Runtime, tenant: str, conversation: str) -> SessionValue:
    """Resets the session: earlier turns leave the session, but stay in the transcript."""
    async with _memory(runtime, tenant) as memory:
        return await memory.reset(conversation)


@contextlib.asynccontextmanager
async def _memory(runtime: Runtime, tenant: str) -> AsyncIterator[ShortTermMemory]:
    check_tenant(tenant)
    await runtime.wait_until_projected(names=READS)
    async with ShortTermMemory(runtime.log, runtime.pool, runtime.settings, tenant) as memory:
        yield memory
