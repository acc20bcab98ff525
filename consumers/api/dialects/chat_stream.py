"""The chat of seed D (2.3.5): its request, and the result of every node as it comes, of turnlog's own agent."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field

from turnlog.agent.answering.agents import DEFAULT_AGENT
from turnlog.agent.answering.asking import Answered, Asked, Piece, Restarted, Seen, Text, ToolReturned, ToolUsed
from turnlog.agent.answering.context import context_as_of
from turnlog.agent.answering.fallback import Locale
from turnlog.agent.answering.request import answer_id
from turnlog.agent.conversations.transcript import json_or_text
from turnlog.consumers.api.dialects.ai_agent_admin import AGENT_TYPE
from turnlog.consumers.api.principal import Asker, Caller, WriteId
from turnlog.consumers.api.problems import language_of, problem_of
from turnlog.consumers.api.streams import Running, Streams
from turnlog.events.errors import TurnlogError

router = APIRouter(prefix="/api/chat", tags=["seed D"])
Id = Annotated[str | None, Field(min_length=1, max_length=255)]
Result = tuple[str, Any]


class ChatRequest(BaseModel):
    """user_id: left out or the caller's. session_id: a name for a group of conversations, without effect here. debug:
    the last event has the messages that the model was given."""

    message: str = Field(min_length=1, max_length=1_000_000)
    user_id: Id = None
    session_id: Id = None
    conversation_id: Id = None
    agent_type: str | None = Field(None, pattern=AGENT_TYPE)
    debug: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer under way, before its first event is sent."""

    caller: Caller
    thread: str
    agent: str
    debug: bool
    running: Running[Piece]
    locale: Locale


async def begin(given: ChatRequest, caller: Asker, write_id: WriteId, request: Request) -> Begun:
    caller.check_user(given.user_id)
    streams: Streams = request.app.state.streams
    thread, agent = given.conversation_id or str(write_id), given.agent_type and given.agent_type.lower()
    asked, running = await streams.ask(caller, thread, given.message, None, write_id, agent)
    return Begun(caller, asked.thread, agent or DEFAULT_AGENT, given.debug, running, language_of(request))


@router.post("/stream", response_class=EventSourceResponse)
async def stream(begun: Annotated[Begun, Depends(begin)]) -> AsyncIterator[ServerSentEvent]:
    """Appends the message; events: route, recall, retrieve for each search of the agent, content {chunk}, generate,
    persist, and restart, error. A client that leaves asks for the rest at /api/threads/{thread}/answers/{seq}."""
    try:
        async with aclosing(_results(begun)) as results:
            async for node, result in results:
                yield ServerSentEvent(event=node, data=result)
    except TurnlogError as error:
        yield ServerSentEvent(event="error", raw_data=bytes(problem_of(error, begun.locale).body).decode())


async def _results(begun: Begun) -> AsyncGenerator[Result]:
    """(node, result)."""
    asked, arguments = 0, dict[str, Any]()
    async with aclosing(begun.running.read()) as pieces:
        async for _, piece in pieces:
            match piece:
                case Asked(seq=asked):
                    yield "route", {"agent_type": begun.agent, "conversation_id": begun.thread, "seq": asked}
                case Seen():
                    yield "recall", piece
                case ToolUsed(id=call, arguments=given):
                    arguments[call] = json_or_text(given)
                case ToolReturned(id=call):
                    about = {"arguments": arguments.get(call), "result": json_or_text(piece.result)}
                    about |= {"is_error": piece.is_error, "latency_ms": piece.latency_ms}
                    yield "retrieve", {"name": piece.name, **about}
                case Text(text=text):
                    yield "content", {"chunk": text}
                case Restarted():
                    yield "restart", {}
                case Answered():
                    yield (
                        "generate",
                        {"message": piece.answer, "model": piece.model, "finish_reason": piece.finish_reason},
                    )
                    yield "persist", await _stored(begun, asked, piece)


async def _stored(begun: Begun, asked: int, made: Answered) -> dict[str, Any]:
    receipt = answer_id(answer_id(made.question_id, "request"), "receipt")
    stored: dict[str, Any] = {"answer_id": made.answer_id, "seq": made.seq, "receipt_id": receipt}
    if begun.debug:
        seen = await context_as_of(begun.caller.runtime, begun.caller.tenant, begun.thread, asked)
        stored["messages"] = seen.context.messages
    return stored
