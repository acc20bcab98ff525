"""Answers of turnlog's agent: whole, as a stream of server-sent events, and the rest of a stream that broke off."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field

from turnlog.agent.answering.asking import (
    AgentSwitched,
    Answered,
    AnswerPiece,
    PhaseChanged,
    PlanShown,
    QuestionStored,
    Restarted,
    Seen,
    Solved,
    Text,
    ToolReturned,
    ToolUsed,
    follow,
)
from turnlog.agent.answering.cancelling import cancel_answer
from turnlog.agent.team.configured import entry_agent
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.principal import Asker, WriteId
from turnlog.consumers.api.problems import language_of
from turnlog.consumers.api.routes.threads import ThreadId
from turnlog.consumers.api.streams import OF_FEW, AnswerUnderWay, Running, Streams, ask_agent, server_sent

router = APIRouter(prefix="/api/threads/{thread}/answers", tags=["answers"])
_EVENT_ID = re.compile(r"([0-9a-f]{8})-(\d{1,9})-(\d{1,9})")


class NewQuestion(RequestBody):
    """A question to answer. model: a model to use instead of the server's. agent: the type of the agent to ask; null
    lets the server choose."""

    message: str = Field(min_length=1, max_length=1_000_000)
    model: str | None = Field(None, max_length=200)
    agent: str | None = Field(None, min_length=1, max_length=200)


async def begin(
    thread: ThreadId, question: NewQuestion, caller: Asker, write_id: WriteId, request: Request
) -> AnswerUnderWay:
    return await ask_agent(
        request, caller, thread, question.message, write_id, model=question.model, agent=question.agent
    )


Begin = Annotated[AnswerUnderWay, Depends(begin)]


@router.post("", status_code=201)
async def create_answer(answer: Begin) -> Answered:
    """Appends the message and waits until its answer is recorded. Both are then in the conversation."""
    async for _, piece in answer.running.read():
        if isinstance(piece, Answered):
            return piece
    raise AssertionError("the last piece is the recorded answer")


@router.post("/stream", response_class=EventSourceResponse)
async def stream_answer(answer: Begin) -> AsyncIterator[ServerSentEvent]:
    """Appends the message; events: started {seq}, context, content {chunk}, tool_start, tool_end, restart,
    done {response}, error; from a team also phase_change, plan, agent_switch, run. A client that disconnects does not
    lose the answer: GET …/answers/{seq} has the rest."""
    async with aclosing(server_sent(_events(answer.running), answer.locale, only_without_answer=True)) as events:
        async for event in events:
            yield event


async def asked_before(
    thread: ThreadId,
    seq: Annotated[int, Path(ge=1, description="`seq` of the event `started`.")],
    caller: Asker,
    request: Request,
) -> AnswerUnderWay:
    """Returns the answer again, from the log. Its first piece proves that the question exists."""
    running = Running(follow(*await caller.owns(thread, "reader"), seq))
    asked = await running.asked()
    agent = entry_agent(caller.runtime)
    return AnswerUnderWay(caller, asked.thread, seq, agent, running, language_of(request))


@router.get("/{seq}", response_class=EventSourceResponse, dependencies=OF_FEW)
async def follow_answer(
    answer: Annotated[AnswerUnderWay, Depends(asked_before)],
    request: Request,
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Streams the rest of an answer after the event `Last-Event-ID`; without that header, all of it."""
    last = _EVENT_ID.fullmatch(last_event_id or "")
    streams: Streams = request.app.state.streams
    streamed = streams.find(answer.caller.tenant, answer.thread, answer.seq)
    if streamed is not None and (last is None or last[1] == streamed.id):
        answer.running.task.cancel()
        sent = _events(streamed, int(last[2]) if last else 0, int(last[3]) if last else 0)
    else:
        sent = _recorded(answer.running, int(last[3]) if last else 0)
    async with aclosing(server_sent(sent, answer.locale, only_without_answer=True)) as events:
        async for event in events:
            yield event


@router.post("/{seq}/cancel", status_code=204)
async def stop_answer(
    thread: ThreadId, seq: Annotated[int, Path(ge=1, description="`seq` of the event `started`.")], caller: Asker
) -> None:
    """Stops a running answer. The text so far is recorded as the answer; its readers get `done` with the
    `finish_reason` `cancelled`, or, if there is no text yet, the error `no-answer` with status 409. Refused with 409,
    `not-under-way`, if the answer has ended or no worker begins it within some seconds."""
    await cancel_answer(*await caller.owns(thread), seq)


async def _events(running: Running[AnswerPiece], after: int = 0, chars: int = 0) -> AsyncGenerator[ServerSentEvent]:
    """Yields the pieces after number `after` as events. chars: how many characters the client has since the last
    restart; every id ends with this number."""
    async with aclosing(running.read(after)) as pieces:
        async for number, piece in pieces:
            chars = 0 if isinstance(piece, Restarted) else chars
            chars += len(piece.text) if isinstance(piece, Text) else 0
            name, data = _event(piece)
            yield ServerSentEvent(event=name, data=data, id=f"{running.id}-{number}-{chars}")


async def _recorded(running: Running[AnswerPiece], chars: int) -> AsyncGenerator[ServerSentEvent]:
    """Waits for the recorded answer, if another process streams it, and yields the part that the client lacks."""
    async with aclosing(running.read()) as pieces:
        async for number, piece in pieces:
            if isinstance(piece, Answered):
                if piece.answer[chars:]:
                    yield ServerSentEvent(event="content", data={"chunk": piece.answer[chars:]})
                name, data = _event(piece)
                yield ServerSentEvent(event=name, data=data, id=f"{running.id}-{number}-{len(piece.answer)}")


# For answers by a team of agents.
TEAM_EVENTS: dict[type, str] = {
    PhaseChanged: "phase_change",
    PlanShown: "plan",
    AgentSwitched: "agent_switch",
    Solved: "run",
}


def _event(piece: AnswerPiece) -> tuple[str, Any]:
    match piece:
        case QuestionStored(seq=seq):
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
        case PhaseChanged() | PlanShown() | AgentSwitched() | Solved():
            return TEAM_EVENTS[type(piece)], piece
        case Answered():
            return "done", {"response": piece}
