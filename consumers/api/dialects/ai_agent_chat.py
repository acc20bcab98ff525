"""The main controller of seed E (11.1) under /ai-agent: answers, and what the caller has used and has left."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import BaseModel, Field
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from turnlog.agent.access import limits
from turnlog.agent.access.throttle.guards import Guard
from turnlog.agent.answering.agents import DEFAULT_AGENT
from turnlog.agent.answering.asking import Answered, Piece, Restarted, Text, ToolReturned, ToolUsed
from turnlog.agent.answering.fallback import Locale
from turnlog.agent.conversations.transcript import json_or_text
from turnlog.agent.memory.entities import EntityFound, entities_by_id, entity_id
from turnlog.agent.operations import health, usage
from turnlog.agent.operations.health import Health
from turnlog.agent.operations.usage import By, Usage
from turnlog.agent.recall.user_context import user_context
from turnlog.consumers.api.dialects.ai_agent import HeaderCursor, Id, delete_conversation, list_messages
from turnlog.consumers.api.dialects.ai_agent_admin import AGENT_TYPE
from turnlog.consumers.api.dialects.ai_agent_records import EntityRecord, MemoryRecord, MessageRecord, ids_by_name
from turnlog.consumers.api.pages import Limit
from turnlog.consumers.api.principal import Asker, Caller, Reader, WriteId, Writer
from turnlog.consumers.api.problems import problem_of
from turnlog.consumers.api.streams import STREAM, Running, Streams
from turnlog.events.errors import TurnlogError

router = APIRouter(prefix="/ai-agent", tags=["seed E"])
QUOTAS = ("tokens_per_day", "usd_per_month")


class Question(BaseModel):
    """locale: of what a person reads when there is no answer."""

    message: str = Field(min_length=1, max_length=1_000_000)
    conversationId: str | None = Field(None, min_length=1, max_length=255)
    locale: Locale = "zh"


class Chat(Question):
    """agentType: another agent than the one that coordinates."""

    agentType: str | None = Field(None, pattern=AGENT_TYPE)
    stream: bool = False


class AgentCall(Question):
    agentType: str = Field(pattern=AGENT_TYPE)


class AgentResponse(BaseModel):
    """data.fastRoute: whether the answer came without a model; data.finishReason: why it ended. delegatedTo: the agent
    that another one asked to answer. suggestions: what to ask next."""

    message: str
    agentType: str
    conversationId: str
    data: dict[str, Any]
    toolsUsed: list[str]
    delegatedTo: str | None
    suggestions: list[str]


class RateLimit(BaseModel):
    """reset: when a full window has room again."""

    name: str
    limit: float
    used: float
    remaining: float
    reset: datetime | None


class UserContext(BaseModel):
    """preferences: only those that are set."""

    userId: str
    preferences: dict[str, Any]
    memories: list[MemoryRecord]
    entities: list[EntityRecord]
    activeConversation: str | None
    readAt: datetime


@router.post("/chat", response_model=AgentResponse, responses=STREAM)
async def chat(given: Chat, caller: Asker, write_id: WriteId, request: Request) -> Any:
    """With `stream` as server-sent events: agent_switch {from, to} where agentType names another agent, content
    {chunk}, tool_start {name, args}, tool_end {name, result}, restart, done {response}, error."""
    answer = await _asked(given, given.conversationId, given.agentType, caller, write_id, request)
    return answer.streamed() if given.stream else await answer.whole()


@router.post("/agent")
async def call_agent(given: AgentCall, caller: Asker, write_id: WriteId, request: Request) -> AgentResponse:
    """The whole answer of this agent. 404 where there is no such agent, 409 while it is switched off."""
    return await (await _asked(given, given.conversationId, given.agentType, caller, write_id, request)).whole()


@router.post("/conversations/{id}/stream", response_class=StreamingResponse, responses=STREAM)
async def stream(id: Id, given: Chat, caller: Asker, write_id: WriteId, request: Request) -> StreamingResponse:
    """As /chat with `stream`, in this conversation."""
    return (await _asked(given, id, given.agentType, caller, write_id, request)).streamed()


@router.get("/history")
async def history(
    conversationId: str, caller: Reader, response: Response, limit: Limit = 50, cursor: HeaderCursor = None
) -> list[MessageRecord]:
    """The newest messages, oldest first; the next page has those before."""
    return await list_messages(conversationId, caller, response, limit, cursor)


@router.delete("/conversation", status_code=204)
async def clear_conversation(conversationId: str, caller: Writer, write_id: WriteId) -> Response:
    return await delete_conversation(conversationId, caller, write_id)


@router.post("/refresh-context")
async def refresh_context(caller: Reader) -> UserContext:
    """What is known of the caller, read now. Every answer reads it too: no copy of it can be out of date."""
    place = (caller.runtime, caller.tenant, caller.user)
    found, ids = await user_context(*place), ids_by_name(await entities_by_id(*place))
    preferences = found.preferences.model_dump(mode="json", exclude_none=True)
    return UserContext(
        userId=caller.user,
        preferences={to_camel(name): value for name, value in preferences.items()},
        memories=[MemoryRecord.of(one) for one in found.memories],
        entities=[EntityRecord.of(caller.user, _id(caller, one), one, ids) for one in found.entities],
        activeConversation=found.active,
        readAt=found.read_at,
    )


@router.get("/usage")
async def own_usage(caller: Reader, by: By = "day") -> list[Usage]:
    """Calls, tokens and cost of language models, by day, month, agent or model."""
    return await usage.usage(caller.runtime, caller.tenant, caller.user, by)


@router.get("/rate-limit")
async def rate_limit(
    caller: Reader,
    conversationId: str | None = None,
    agentType: Annotated[str, Query(pattern=AGENT_TYPE)] = DEFAULT_AGENT,
) -> list[RateLimit]:
    """Requests at once, and those of the last minute and hour: of the caller, the conversation and the agent."""
    return [
        RateLimit(name=one.name, limit=one.limit, used=one.used, remaining=one.left, reset=one.resets_at)
        for one in await _guards(caller, conversationId, agentType.lower())
        if one.name not in QUOTAS
    ]


@router.get("/quota")
async def quota(caller: Reader) -> list[Guard]:
    """Tokens of the day and cost of the month."""
    return [one for one in await _guards(caller, None, DEFAULT_AGENT) if one.name in QUOTAS]


@router.get("/health")
async def parts(caller: Reader) -> Health:
    """Postgres, NATS, the projections and the models. The answer is 200 while a part is away: `state` says so."""
    return await health.health(caller.system)


async def _asked(
    given: Question, thread: str | None, agent: str | None, caller: Caller, write_id: UUID, request: Request
) -> "_Answer":
    """Appends the question. The errors of the request have a text for people from here on."""
    request.state.locale = given.locale
    streams: Streams = request.app.state.streams
    thread, agent = thread or str(write_id), agent.lower() if agent else None
    asked, running = await streams.ask(caller, thread, given.message, None, write_id, agent)
    return _Answer(asked.thread, agent or DEFAULT_AGENT, given.locale, running)


class _Answer:
    """An answer under way in the events and the response of E 3.1."""

    def __init__(self, thread: str, agent: str, locale: Locale, running: Running[Piece]) -> None:
        self.thread, self.agent, self.locale, self.running = thread, agent, locale, running

    async def whole(self) -> AgentResponse:
        async for event, data in self._steps():
            if event == "done":
                response: AgentResponse = data["response"]
                return response
        raise AssertionError("an answer ends with what was recorded")

    def streamed(self) -> StreamingResponse:
        return StreamingResponse(self._events(), media_type=EventSourceResponse.media_type)

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            async with aclosing(self._steps()) as steps:
                async for event, data in steps:
                    yield format_sse_event(event=event, data_str=to_json(data).decode())
        except TurnlogError as error:
            body = bytes(problem_of(error, self.locale).body).decode()
            yield format_sse_event(event="error", data_str=body)

    async def _steps(self) -> AsyncGenerator[tuple[str, Any]]:
        """(event, data)."""
        used = list[str]()
        if self.agent != DEFAULT_AGENT:
            yield "agent_switch", {"from": DEFAULT_AGENT, "to": self.agent}
        async with aclosing(self.running.read()) as pieces:
            async for _, piece in pieces:
                match piece:
                    case Text(text=text):
                        yield "content", {"chunk": text}
                    case ToolUsed(name=name, arguments=arguments):
                        used.append(name)
                        yield "tool_start", {"name": name, "args": json_or_text(arguments)}
                    case ToolReturned(name=name, result=result):
                        yield "tool_end", {"name": name, "result": json_or_text(result)}
                    case Restarted():
                        used.clear()
                        yield "restart", {}
                    case Answered():
                        yield "done", {"response": self._response(piece, used)}

    def _response(self, made: Answered, used: list[str]) -> AgentResponse:
        return AgentResponse(
            message=made.answer,
            agentType=self.agent,
            conversationId=self.thread,
            data={"fastRoute": False, "finishReason": made.finish_reason},
            toolsUsed=list(dict.fromkeys(used)),
            delegatedTo=None,
            suggestions=[],
        )


def _id(caller: Caller, found: EntityFound) -> UUID:
    return entity_id(caller.tenant, caller.user, found.type, found.name)


async def _guards(caller: Caller, thread: str | None, agent: str) -> list[Guard]:
    return await limits.usage_left(caller.runtime, caller.tenant, caller.user, caller.identity.role, thread, agent)
