"""Conversations as a front-end shows them: list, history, and the stream of a thread's events."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import StringConstraints, TypeAdapter

from turnlog.agent.access.identity import Unauthenticated
from turnlog.agent.conversations.threads import ThreadMarks, marks_of
from turnlog.agent.conversations.transcript import blocks_of, transcript_in_parts
from turnlog.agent.operations.event_relations import EventRelations, event_relations, event_relations_for_operator
from turnlog.agent.operations.tailing import Line, tail
from turnlog.consumers.api.pages import Cursor, Limit
from turnlog.consumers.api.principal import Operator, Place, Principal, Reader, Watcher
from turnlog.consumers.api.routes.threads import Seq, ThreadId, list_threads
from turnlog.consumers.api.streams import OF_FEW, until

router = APIRouter(prefix="/api", tags=["timeline"])
_ALL = 2**62
TypeName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
CHECK_S = 1.0  # how long a revoked key may still get events, because a look-up for each event would cost too much


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    label: str | None
    lastActiveAt: datetime


@dataclass(frozen=True, slots=True)
class TimelineTurn:
    """A turn of the timeline. blocks: text, thinking, tool_use, tool_result and others, as stored."""

    id: UUID
    seq: int
    role: str
    blocks: list[dict[str, Any]]
    time: datetime


_TURNS = TypeAdapter(list[TimelineTurn])


@router.get("/conversations")
async def list_conversations(
    caller: Reader, request: Request, response: Response, limit: Limit = 200, cursor: Cursor = None
) -> list[Conversation]:
    """Lists conversations, most recently active first. If more follow, the header `Link` has the address of the next
    page (RFC 8288)."""
    page = await list_threads(caller, limit, cursor)
    if page.next is not None:
        following = request.url.include_query_params(limit=limit, cursor=page.next)
        response.headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return [Conversation(thread.thread, thread.label, thread.last_active_at) for thread in page.items]


@router.get("/thread-marks")
async def thread_marks(
    caller: Reader,
    thread: Annotated[list[str], Query(max_length=100, description="Ids of conversations; unknown ones are left out.")],
) -> list[ThreadMarks]:
    """Returns what lists show about conversations: label, tokens that models used, and whether events wait to be
    applied.
    """
    return await marks_of(*caller.person, thread)


@router.get("/chat/history", response_model=list[TimelineTurn])
async def history(thread_id: Annotated[str, Query(min_length=1, max_length=255)], caller: Reader) -> Response:
    """Returns all turns that are stored, oldest first."""
    place, parts = await caller.owns(thread_id, "reader"), list[bytes]()
    async for part in transcript_in_parts(*place):  # other requests are served between two parts
        shown = [TimelineTurn(turn.event_id, turn.seq, turn.role, blocks_of(turn), turn.time) for turn in part]
        parts.append(_TURNS.dump_json(shown)[1:-1])
    return Response(b"[" + b",".join(filter(None, parts)) + b"]", media_type="application/json")


async def watched(thread: ThreadId, caller: Watcher) -> Place:
    return await caller.owns(thread)


@router.get("/threads/{thread}/events", response_class=EventSourceResponse, dependencies=OF_FEW)
async def thread_events(
    place: Annotated[Place, Depends(watched)],
    caller: Watcher,
    request: Request,
    after: Annotated[int, Query(ge=0, le=_ALL, description="Events after this sequence of the log.")] = 0,
    type: Annotated[list[TypeName] | None, Query(max_length=20, description="Only events of these types.")] = None,
    last_event_id: Annotated[str | None, Header(pattern=r"^\d{1,18}$")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Streams the events of the conversation from the log, then new ones as they arrive. Every id is a sequence, so a
    client that reconnects with `Last-Event-ID` misses none. Personal fields of other people stay sealed."""
    start = int(last_event_id or after) + 1
    _, tenant, thread = place
    readers = frozenset({caller.user})
    lines = tail(caller.system, start, tenant=tenant, thread=thread, readers=readers, types=type or ())
    async with aclosing(watch(request, caller, lines)) as events:
        async for event in events:
            yield event


@router.get("/threads/{thread}/events/{seq}")
async def show_event(thread: ThreadId, seq: Seq, caller: Reader) -> EventRelations:
    """Returns an event of the conversation with the events that caused it, the events that it caused, and the rows of
    read models that refer to it."""
    _, tenant, thread = await caller.owns(thread)
    return await event_relations(caller.system, tenant, thread, caller.user, seq)


@router.get("/operations/events", response_class=EventSourceResponse, dependencies=OF_FEW, tags=["operations"])
async def tenant_events(
    caller: Operator,
    request: Request,
    newest: Annotated[int, Query(ge=0, le=10_000, description="How many sequences before the log's end to begin.")] = 0,
    last_event_id: Annotated[str | None, Header(pattern=r"^\d{1,18}$")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Streams the events of all conversations and people of the tenant as they arrive. Ids and sealed fields are as in
    a conversation's stream."""
    head = await caller.system.log.head()
    start = int(last_event_id) + 1 if last_event_id else max(1, head + 1 - newest)
    lines = tail(caller.system, start, tenant=caller.tenant, readers=frozenset({caller.user}))
    async with aclosing(watch(request, caller, lines)) as events:
        async for event in events:
            yield event


@router.get("/operations/events/{seq}", tags=["operations"])
async def show_tenant_event(seq: Seq, caller: Operator) -> EventRelations:
    """Returns an event of any conversation of the tenant with its causes, its effects, and the ids and numbers of the
    rows that refer to it; what people said stays sealed."""
    return await event_relations_for_operator(caller.system, caller.tenant, caller.user, seq)


async def watch(request: Request, caller: Principal, lines: AsyncGenerator[Line]) -> AsyncGenerator[ServerSentEvent]:
    """Yields the lines as events until the server stops or the caller's credential is no longer valid."""
    checked_at = time.monotonic()
    async with aclosing(until(request.app.state.stopping, lines)) as watched_lines:
        async for line in watched_lines:
            if time.monotonic() >= checked_at + CHECK_S:
                try:
                    await caller.check()
                except Unauthenticated:
                    return  # when the client reconnects, the response says why
                checked_at = time.monotonic()
            shown = line.document()
            yield ServerSentEvent(event=shown["type"], data=shown, id=str(shown["seq"]))
