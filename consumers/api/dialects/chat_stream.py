"""Streams the steps of an agent's answer, under /api/chat."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field

from turnlog.agent.answering.asking import Answered, QuestionStored, Restarted, Seen, Text, ToolReturned, ToolUsed
from turnlog.agent.answering.context import context_as_of
from turnlog.agent.answering.request import answer_id
from turnlog.agent.conversations.transcript import json_or_text
from turnlog.consumers.api.dialects.ai_agent_admin import AGENT_TYPE
from turnlog.consumers.api.principal import Asker, WriteId
from turnlog.consumers.api.streams import AnswerUnderWay, ask_agent, server_sent

router = APIRouter(prefix="/api/chat", tags=["chat stream"])
Id = Annotated[str | None, Field(min_length=1, max_length=255)]


class ChatRequest(BaseModel):
    """The body of a question. user_id: the caller's, if given. session_id: the conversation if no conversation_id is
    given. debug: the last event contains the messages that the model got."""

    message: str = Field(min_length=1, max_length=1_000_000)
    user_id: Id = None
    session_id: Id = None
    conversation_id: Id = None
    agent_type: str | None = Field(None, pattern=AGENT_TYPE)
    debug: bool = False


async def begin(chat: ChatRequest, caller: Asker, write_id: WriteId, request: Request) -> tuple[AnswerUnderWay, bool]:
    """Returns the answer, and whether its last event contains the model's messages. Errors raised here become the
    response.
    """
    caller.check_user(chat.user_id)
    thread = chat.conversation_id or chat.session_id or str(write_id)
    return await ask_agent(request, caller, thread, chat.message, write_id, agent=chat.agent_type), chat.debug


@router.post("/stream", response_class=EventSourceResponse)
async def graph_stream(begun: Annotated[tuple[AnswerUnderWay, bool], Depends(begin)]) -> AsyncIterator[ServerSentEvent]:
    """Appends the message; events: route, recall, retrieve for each search of the agent, content {chunk}, generate,
    persist, and restart, error. A client that disconnects can get the rest at /api/threads/{thread}/answers/{seq}."""
    answer, debug = begun
    async with aclosing(server_sent(_events(answer, debug), answer.locale)) as events:
        async for event in events:
            yield event


async def _events(answer: AnswerUnderWay, debug: bool) -> AsyncGenerator[ServerSentEvent]:
    arguments = dict[str, Any]()
    async with aclosing(answer.running.read()) as pieces:
        async for _, piece in pieces:
            match piece:
                case QuestionStored(seq=seq):
                    route = {"agent_type": answer.agent, "conversation_id": answer.thread, "seq": seq}
                    yield ServerSentEvent(event="route", data=route)
                case Seen():
                    yield ServerSentEvent(event="recall", data=piece)
                case ToolUsed(id=call, arguments=written):
                    arguments[call] = json_or_text(written)
                case ToolReturned(id=call):
                    search = {"name": piece.name, "arguments": arguments.get(call)}
                    search |= {"result": json_or_text(piece.result)}
                    search |= {"is_error": piece.is_error, "latency_ms": piece.latency_ms}
                    yield ServerSentEvent(event="retrieve", data=search)
                case Text(text=text):
                    yield ServerSentEvent(event="content", data={"chunk": text})
                case Restarted():
                    yield ServerSentEvent(event="restart", data={})
                case Answered():
                    made = {"message": piece.answer, "model": piece.model, "finish_reason": piece.finish_reason}
                    yield ServerSentEvent(event="generate", data=made)
                    yield ServerSentEvent(event="persist", data=await _stored(answer, piece, debug))


async def _stored(answer: AnswerUnderWay, made: Answered, debug: bool) -> dict[str, Any]:
    receipt = answer_id(answer_id(made.question_id, "request"), "receipt")
    stored: dict[str, Any] = {"answer_id": made.answer_id, "seq": made.seq, "receipt_id": receipt}
    if debug:
        caller = answer.caller
        seen = await context_as_of(caller.runtime, caller.tenant, answer.thread, answer.seq)
        stored["messages"] = seen.context.messages
    return stored
