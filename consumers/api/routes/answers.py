"""Answers of turnlog's agent: whole, as a stream of server-sent events, and the rest of a stream that broke off."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field

from turnlog.agent.answering.asking import (
    Answered,
    Asked,
    NoAnswer,
    Piece,
    Restarted,
    Seen,
    Text,
    ToolReturned,
    ToolUsed,
    follow,
)
from turnlog.agent.answering.fallback import Locale
from turnlog.consumers.api.principal import Asker, Caller, WriteId
from turnlog.consumers.api.problems import language_of, problem_of
from turnlog.consumers.api.routes.threads import ThreadId
from turnlog.consumers.api.streams import OF_FEW, Running, Streams
from turnlog.events.errors import TurnlogError

router = APIRouter(prefix="/api/threads/{thread}/answers", tags=["answers"])
_EVENT_ID = re.compile(r"([0-9a-f]{8})-(\d{1,9})-(\d{1,9})")


class Message(BaseModel):
    """model: another one than the server's own."""

    message: str = Field(min_length=1, max_length=1_000_000)
    model: str | None = Field(None, max_length=200)


class Begun:
    """An answer under way, before its first event is sent."""

    def __init__(self, caller: Caller, thread: str, seq: int, running: Running[Piece], locale: Locale) -> None:
        self.caller, self.thread, self.seq, self.running, self.locale = caller, thread, seq, running, locale


async def begin(thread: ThreadId, given: Message, caller: Asker, write_id: WriteId, request: Request) -> Begun:
    asked, running = await _streams(request).ask(caller, thread, given.message, given.model, write_id)
    return Begun(caller, asked.thread, asked.seq, running, language_of(request))


Begin = Annotated[Begun, Depends(begin)]


@router.post("", status_code=201)
async def whole(begun: Begin) -> Answered:
    """Appends the message and waits for the answer of record. Both are in the conversation then."""
    async for _, piece in begun.running.read():
        if isinstance(piece, Answered):
            return piece
    raise AssertionError("an answer ends with what was recorded")


@router.post("/stream", response_class=EventSourceResponse)
async def stream(begun: Begin) -> AsyncIterator[ServerSentEvent]:
    """Appends the message; events: started {seq}, context, content {chunk}, tool_start, tool_end, restart,
    done {response}, error. A client that leaves does not lose the answer: GET …/answers/{seq} has the rest."""
    async with aclosing(_events(begun.running, 0, 0, begun.locale)) as events:
        async for event in events:
            yield event


async def found(
    thread: ThreadId,
    seq: Annotated[int, Path(ge=1, description="`seq` of the event `started`.")],
    caller: Asker,
    request: Request,
) -> Begun:
    """The answer again, from the log; its first piece shows that there is such a question."""
    running = Running(follow(*await caller.owns(thread), seq))
    return Begun(caller, (await running.asked()).thread, seq, running, language_of(request))


@router.get("/{seq}", response_class=EventSourceResponse, dependencies=OF_FEW)
async def rest(
    begun: Annotated[Begun, Depends(found)],
    request: Request,
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """What is still to come of an answer behind the event `Last-Event-ID`; without one all of it."""
    last = _EVENT_ID.fullmatch(last_event_id or "")
    streamed = _streams(request).find(begun.caller.tenant, begun.thread, begun.seq)
    if streamed is not None and (last is None or last[1] == streamed.id):
        begun.running.task.cancel()
        events = _events(streamed, int(last[2]) if last else 0, int(last[3]) if last else 0, begun.locale)
    else:
        events = _recorded(begun.running, int(last[3]) if last else 0, begun.locale)
    async with aclosing(events):
        async for event in events:
            yield event


async def _events(running: Running[Piece], after: int, chars: int, locale: Locale) -> AsyncGenerator[ServerSentEvent]:
    """chars: of the text that the client has since the last restart; every id ends with it."""
    try:
        async with aclosing(running.read(after)) as pieces:
            async for number, piece in pieces:
                chars = 0 if isinstance(piece, Restarted) else chars
                chars += len(piece.text) if isinstance(piece, Text) else 0
                name, data = _event(piece)
                yield ServerSentEvent(event=name, data=data, id=f"{running.id}-{number}-{chars}")
    except TurnlogError as error:
        yield ServerSentEvent(event="error", raw_data=_failure(error, locale))


async def _recorded(running: Running[Piece], chars: int, locale: Locale) -> AsyncGenerator[ServerSentEvent]:
    """For a stream of another process: waits for the answer of record, and sends what the client has not."""
    try:
        async with aclosing(running.read()) as pieces:
            async for number, piece in pieces:
                if isinstance(piece, Answered):
                    if piece.answer[chars:]:
                        yield ServerSentEvent(event="content", data={"chunk": piece.answer[chars:]})
                    name, data = _event(piece)
                    yield ServerSentEvent(event=name, data=data, id=f"{running.id}-{number}-{len(piece.answer)}")
    except TurnlogError as error:
        yield ServerSentEvent(event="error", raw_data=_failure(error, locale))


def _failure(error: TurnlogError, locale: Locale) -> str:
    return bytes(problem_of(error, locale if isinstance(error, NoAnswer) else None).body).decode()


def _event(piece: Piece) -> tuple[str, Any]:
    match piece:
        case Asked(seq=seq):
            return "started", {"seq": seq}
        case Seen():
            return "context", piece
        case Text(text=text):
            return "content", {"chunk": text}
        case ToolUsed(id=call, name=name, arguments=arguments):
            return "tool_start", {"id": call, "name": name, "args": arguments}
        case ToolReturned():
            return "tool_end", piece
        case Restarted():
            return "restart", {}
        case Answered():
            return "done", {"response": piece}


def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams
