"""Answers under /ai-agent, and the caller's usage and limits."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent, format_sse_event
from pydantic import Field
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from turnlog.agent.access import limits
from turnlog.agent.access.throttle.guards import QUOTAS, Guard
from turnlog.agent.answering.asking import (
    AgentSwitched,
    Answered,
    PhaseChanged,
    PlanShown,
    Restarted,
    Solved,
    Text,
    ToolReturned,
    ToolUsed,
)
from turnlog.agent.answering.fallback import Locale
from turnlog.agent.conversations.transcript import json_or_text
from turnlog.agent.operations import health, usage
from turnlog.agent.operations.health import Health
from turnlog.agent.operations.usage import By, Usage
from turnlog.agent.recall.user_context import user_context
from turnlog.agent.team.configured import entry_agent
from turnlog.consumers.api.bodies import CamelBody, CamelRecord
from turnlog.consumers.api.dialects.ai_agent import HeaderCursor, Id, delete_conversation, list_messages
from turnlog.consumers.api.dialects.ai_agent_admin import AGENT_TYPE
from turnlog.consumers.api.dialects.ai_agent_records import EntityRecord, MemoryRecord, MessageRecord, entity_records
from turnlog.consumers.api.pages import Limit
from turnlog.consumers.api.principal import Asker, Principal, Reader, WriteId, Writer
from turnlog.consumers.api.streams import STREAM, AnswerUnderWay, ask_agent, server_sent

router = APIRouter(prefix="/ai-agent", tags=["ai-agent"])


class AgentRequest(CamelBody):
    """A question to an agent. locale: the language of the message that a person reads when there is no answer."""

    message: str = Field(min_length=1, max_length=1_000_000)
    conversation_id: str | None = Field(None, min_length=1, max_length=255)
    locale: Locale = "zh"


class Chat(AgentRequest):
    """A question to the team. agentType: an agent to ask instead of the coordinating one."""

    agent_type: str | None = Field(None, pattern=AGENT_TYPE)
    stream: bool = False


class AgentCall(AgentRequest):
    agent_type: str = Field(pattern=AGENT_TYPE)


class PlanStep(CamelRecord):
    """A tool call that was planned."""

    tool: str
    args: Any


class ShownPlan(CamelRecord):
    """The plan of an answer. content: what the answering agent said when it planned. steps: the tool calls of all
    agents."""

    content: str = ""
    steps: list[PlanStep] = Field([])


class Timing(CamelRecord):
    """Milliseconds spent in each phase by all agents together."""

    plan: int = 0
    execute: int = 0
    solve: int = 0


class AgentResponse(CamelRecord):
    """An answer. data.fastRoute: whether rules chose the agent or the answer; data.finishReason: why it ended.
    delegatedTo: the agent that another agent asked to answer. plan, timing: only for a run of a team, otherwise null.
    suggestions: questions to ask next, by the rules of the answering agent."""

    message: str
    agent_type: str
    conversation_id: str
    data: dict[str, Any]
    tools_used: list[str]
    delegated_to: str | None
    plan: ShownPlan | None
    timing: Timing | None
    suggestions: list[str]


class RateLimit(CamelRecord):
    """A limit of requests. reset: when a full window accepts a request again, or when the oldest request leaves a
    window that is not full; null if nothing is used, and for concurrent requests."""

    name: str
    limit: float
    used: float
    remaining: float = Field(validation_alias="left")
    reset: datetime | None = Field(validation_alias="resets_at")


class UserContext(CamelRecord):
    """The caller's memories and preferences. preferences: only those that are set."""

    user_id: str
    preferences: dict[str, Any]
    memories: list[MemoryRecord]
    entities: list[EntityRecord]
    active_conversation: str | None
    read_at: datetime


@router.post("/chat", response_model=AgentResponse, responses=STREAM)
async def chat(question: Chat, caller: Asker, write_id: WriteId, request: Request) -> Any:
    """Answers a question; with `stream` as server-sent events: agent_switch {from, to} if agentType names another agent
    or an agent hands over, phase_change {phase}, plan_content {content}, content {chunk}, tool_start {name, args},
    tool_end {name, result}, restart, done {response}, error."""
    answer = await _ask(question, question.conversation_id, question.agent_type, caller, write_id, request)
    return _streamed(answer) if question.stream else await _whole(answer)


@router.post("/agent")
async def call_agent(question: AgentCall, caller: Asker, write_id: WriteId, request: Request) -> AgentResponse:
    """Returns this agent's answer when it is complete. 404 if there is no such agent, 409 while it is switched off."""
    answer = await _ask(question, question.conversation_id, question.agent_type, caller, write_id, request)
    return await _whole(answer)


@router.post("/conversations/{id}/stream", response_class=StreamingResponse, responses=STREAM)
async def stream(id: Id, question: Chat, caller: Asker, write_id: WriteId, request: Request) -> StreamingResponse:
    """Streams an answer in this conversation, like /chat with `stream`."""
    return _streamed(await _ask(question, id, question.agent_type, caller, write_id, request))


@router.get("/history")
async def history(
    conversationId: str, caller: Reader, response: Response, limit: Limit = 50, cursor: HeaderCursor = None
) -> list[MessageRecord]:
    """Lists the newest messages, oldest first; the next page has earlier ones."""
    return await list_messages(conversationId, caller, response, limit, cursor)


@router.delete("/conversation", status_code=204)
async def clear_conversation(conversationId: str, caller: Writer, write_id: WriteId) -> Response:
    """Removes a conversation from every read model; memories that were extracted from it stay."""
    return await delete_conversation(conversationId, caller, write_id)


@router.post("/refresh-context")
async def refresh_context(caller: Reader) -> UserContext:
    """Returns what is known about the caller at this moment. Every answer reads it anew as well, so no copy can be out
    of date.
    """
    known = await user_context(*caller.person)
    preferences = known.preferences.model_dump(mode="json", exclude_none=True)
    return UserContext(
        user_id=caller.user,
        preferences={to_camel(name): value for name, value in preferences.items()},
        memories=[MemoryRecord.of(memory) for memory in known.memories],
        entities=await entity_records(caller, known.entities),
        active_conversation=known.active,
        read_at=known.read_at,
    )


@router.get("/usage")
async def own_usage(caller: Reader, by: By = "day") -> list[Usage]:
    """Returns the caller's calls, tokens and cost of language and embedding models, by day, month, agent or model."""
    return await usage.usage(*caller.person, by)


@router.get("/rate-limit", response_model=list[RateLimit])
async def rate_limit(
    caller: Reader,
    conversationId: str | None = None,
    agentType: Annotated[str | None, Query(pattern=AGENT_TYPE)] = None,
) -> list[Guard]:
    """Returns the limits of concurrent requests and of requests per minute and hour, for the caller, the conversation
    and the agent."""
    guards = await _guards(caller, conversationId, agentType and agentType.lower())
    return [guard for guard in guards if guard.name not in QUOTAS]


@router.get("/quota")
async def quota(caller: Reader) -> list[Guard]:
    """Returns the caller's quotas: tokens per day, cost per month and embedding tokens per day."""
    return [guard for guard in await _guards(caller, None, None) if guard.name in QUOTAS]


async def _guards(caller: Principal, thread: str | None, agent: str | None) -> list[Guard]:
    agent = agent or entry_agent(caller.runtime)
    return await limits.usage_left(*caller.person, caller.identity.role, thread, agent)


@router.get("/health")
async def parts(caller: Reader) -> Health:
    """Returns the state of Postgres, NATS, the projections, the processes and the models. The status is 200 even if a
    part is unavailable; `state` says so."""
    return await health.health(caller.system)


async def _ask(
    question: AgentRequest, thread: str | None, agent: str | None, caller: Principal, write_id: UUID, request: Request
) -> AnswerUnderWay:
    """Appends the question. From now on, errors of the request have a message for people in the question's language."""
    request.state.locale = question.locale
    return await ask_agent(request, caller, thread or str(write_id), question.message, write_id, agent=agent)


async def _whole(answer: AnswerUnderWay) -> AgentResponse:
    async for event in _events(answer):
        if event.event == "done":
            response: AgentResponse = event.data["response"]
            return response
    raise AssertionError("an answer ends with what was recorded")


def _streamed(answer: AnswerUnderWay) -> StreamingResponse:
    async def framed() -> AsyncIterator[bytes]:
        async with aclosing(server_sent(_events(answer), answer.locale)) as events:
            async for event in events:
                data = event.raw_data or to_json(event.data).decode()
                yield format_sse_event(event=event.event, data_str=data)

    return StreamingResponse(framed(), media_type=EventSourceResponse.media_type)


async def _events(answer: AnswerUnderWay) -> AsyncGenerator[ServerSentEvent]:
    plan, run, of_team = ShownPlan(), Solved("", (answer.agent,), (), {}), False
    entry = entry_agent(answer.caller.runtime)
    if answer.agent != entry:
        yield ServerSentEvent(event="agent_switch", data={"from": entry, "to": answer.agent})
    async with aclosing(answer.running.read()) as pieces:
        async for _, piece in pieces:
            match piece:
                case Text(text=text):
                    yield ServerSentEvent(event="content", data={"chunk": text})
                case ToolUsed(name=name, arguments=arguments):
                    args = json_or_text(arguments)
                    plan.steps.append(PlanStep(tool=name, args=args))
                    yield ServerSentEvent(event="tool_start", data={"name": name, "args": args})
                case ToolReturned(name=name, result=result):
                    yield ServerSentEvent(event="tool_end", data={"name": name, "result": json_or_text(result)})
                case PhaseChanged(phase=phase):
                    yield ServerSentEvent(event="phase_change", data={"phase": phase})
                case PlanShown(thought=thought):
                    plan.content = thought
                    yield ServerSentEvent(event="plan_content", data={"content": thought})
                case AgentSwitched():
                    yield ServerSentEvent(event="agent_switch", data={"from": piece.agent, "to": piece.to})
                case Solved():
                    run, of_team = piece, True
                case Restarted():
                    plan = ShownPlan()
                    yield ServerSentEvent(event="restart", data={})
                case Answered():
                    response = AgentResponse(
                        message=piece.answer,
                        agent_type=run.chain[-1],
                        conversation_id=answer.thread,
                        data={"fastRoute": run.routed, "finishReason": piece.finish_reason},
                        tools_used=list(dict.fromkeys(run.tools or (step.tool for step in plan.steps))),
                        delegated_to=run.chain[-1] if len(run.chain) > 1 else None,
                        plan=plan if of_team else None,
                        timing=Timing(**{phase.lower(): ms for phase, ms in run.milliseconds.items()})
                        if of_team
                        else None,
                        suggestions=list(piece.suggestions),
                    )
                    yield ServerSentEvent(event="done", data={"response": response})
