"""The interface of seed E (11.1, 11.5) under /ai-agent, in its field names, over the same use cases."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import AwareDatetime, BaseModel, Field
from pydantic_core import to_json

from turnlog.agent.answering.request import AGENT
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.privacy.sanitise import SanitiseLevel
from turnlog.agent.throttle.guards import Guard
from turnlog.agent.use_cases import entities, limits, memories, memory_changes, threads, turns, usage
from turnlog.agent.use_cases.asking import Answered, Piece, Restarted, Text, ToolReturned, ToolUsed
from turnlog.agent.use_cases.entities import EntityFound, EntityInput
from turnlog.agent.use_cases.memories import MemoryFilter, MemoryView
from turnlog.agent.use_cases.memory_changes import MemoryInput
from turnlog.agent.use_cases.turns import NewTurn
from turnlog.agent.use_cases.usage import By, Usage
from turnlog.consumers.api.bodies import FINITE, JsonObject
from turnlog.consumers.api.caller import Asker, Caller, Eraser, Reader, WriteId, Writer
from turnlog.consumers.api.pages import Limit
from turnlog.consumers.api.problems import problem_of
from turnlog.consumers.api.routes.personal import as_file, clear, exported
from turnlog.consumers.api.streams import STREAM, Running, Streams
from turnlog.events.contracts import MemoryKind
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.projectors.models.message import Message

router = APIRouter(prefix="/ai-agent", tags=["seed E"])
_ENTITIES = UUID("0193b5a2-6d5e-7c1f-9a43-5f0c8e2b7d13")
_ALL = 2**31
Id = Annotated[str, Path(min_length=1, max_length=255)]
Role = Literal["user", "assistant", "tool", "system"]


class Chat(BaseModel):
    message: str = Field(min_length=1, max_length=1_000_000)
    conversationId: str | None = Field(None, min_length=1, max_length=255)
    stream: bool = False


class AgentResponse(BaseModel):
    message: str
    agentType: str
    conversationId: str
    toolsUsed: list[str]


class NewConversation(BaseModel):
    title: str | None = Field(None, max_length=1_000)


class ConversationRecord(BaseModel):
    id: str
    userId: str
    title: str | None
    updatedAt: datetime


class MessageInput(BaseModel):
    model_config = FINITE
    role: Role
    content: str
    agentType: str | None = None
    toolCalls: list[JsonObject] = []
    tokensUsed: int | None = Field(None, ge=0)
    latencyMs: float | None = Field(None, ge=0)


class MessageRecord(BaseModel):
    id: UUID
    conversationId: str
    role: str
    content: str
    agentType: str | None
    toolCalls: list[dict[str, Any]]
    createdAt: datetime


class NewMemory(BaseModel):
    model_config = FINITE
    type: MemoryKind | None = None
    category: str | None = None
    content: str = Field(min_length=1, max_length=20_000)
    importance: float | None = Field(None, ge=0, le=1)
    metadata: JsonObject | None = None
    expiresAt: AwareDatetime | None = None


class Importance(BaseModel):
    importance: float = Field(ge=0, le=1)


class MemoryRecord(BaseModel):
    id: UUID
    userId: str
    type: str
    category: str | None
    content: str
    importance: float
    accessCount: int
    lastAccessedAt: datetime | None
    metadata: dict[str, Any] | None
    createdAt: datetime


class Relation(BaseModel):
    type: str
    targetName: str


class NewEntity(BaseModel):
    model_config = FINITE
    type: str
    name: str
    description: str | None = None
    attributes: JsonObject = {}
    relations: list[Relation] = []

    def stored_as(self) -> EntityInput:
        relations = [(one.type, one.targetName) for one in self.relations]
        return EntityInput(self.type, self.name, self.description, self.attributes, relations)


class EntityChange(BaseModel):
    model_config = FINITE
    description: str | None = None
    attributes: JsonObject = {}
    relations: list[Relation] = []


class EntityRecord(NewEntity):
    id: UUID
    userId: str
    createdAt: datetime


@router.post("/chat", response_model=AgentResponse, responses=STREAM)
async def chat(given: Chat, caller: Asker, write_id: WriteId, request: Request) -> Any:
    """With `stream` as server-sent events: content {chunk}, tool_start {name, args}, tool_end {name, result}, restart,
    done {response}, error."""
    thread, streams = given.conversationId or str(write_id), _streams(request)
    _, running = await streams.ask(caller, thread, given.message, None, write_id)
    if given.stream:
        return StreamingResponse(_events(thread, running), media_type=EventSourceResponse.media_type)
    async for event, data in _steps(thread, running):
        if event == "done":
            return data["response"]
    raise AssertionError("an answer ends with what was recorded")


@router.post("/conversations/{id}/stream", response_class=StreamingResponse, responses=STREAM)
async def stream(id: Id, given: Chat, caller: Asker, write_id: WriteId, request: Request) -> StreamingResponse:
    """As /chat with `stream`, in this conversation."""
    _, running = await _streams(request).ask(caller, id, given.message, None, write_id)
    return StreamingResponse(_events(id, running), media_type=EventSourceResponse.media_type)


@router.get("/history")
async def history(conversationId: str, caller: Reader, limit: Limit = 50) -> list[MessageRecord]:
    """The newest messages, oldest first."""
    return await list_messages(conversationId, caller, limit)


@router.delete("/conversation", status_code=204)
async def clear_conversation(conversationId: str, caller: Writer, write_id: WriteId) -> Response:
    return await delete_conversation(conversationId, caller, write_id)


@router.get("/usage")
async def own_usage(caller: Reader, by: By = "day") -> list[Usage]:
    return await usage.usage(caller.runtime, caller.tenant, caller.user, by)


@router.get("/rate-limit")
async def rate_limit(caller: Reader, conversationId: str | None = None) -> list[Guard]:
    """Requests at once, and those of the last minute and hour."""
    return [one for one in await _guards(caller, conversationId) if one.name not in ("tokens_per_day", "usd_per_month")]


@router.get("/quota")
async def quota(caller: Reader) -> list[Guard]:
    """Tokens of the day and cost of the month."""
    return [one for one in await _guards(caller, None) if one.name in ("tokens_per_day", "usd_per_month")]


@router.post("/conversations", status_code=201)
async def create_conversation(given: NewConversation, caller: Writer, write_id: WriteId) -> ConversationRecord:
    place = await caller.claims(str(write_id))
    if given.title is not None:
        await threads.rename_thread(*place, given.title, event_id=write_id)
    return await get_conversation(str(write_id), caller)


@router.get("/conversations")
async def list_conversations(caller: Reader, limit: Limit = 50) -> list[ConversationRecord]:
    found = await threads.list_threads(caller.runtime, caller.tenant, caller.user, limit)
    return [
        ConversationRecord(id=one.thread, userId=caller.user, title=one.label, updatedAt=one.last_active_at)
        for one in found
    ]


@router.get("/conversations/{id}")
async def get_conversation(id: Id, caller: Reader) -> ConversationRecord:
    one = await threads.get_thread(*await caller.owns(id))
    return ConversationRecord(id=one.thread, userId=caller.user, title=one.label, updatedAt=one.last_active_at)


@router.delete("/conversations/{id}", status_code=204)
async def delete_conversation(id: Id, caller: Writer, write_id: WriteId) -> Response:
    await threads.delete_thread(*await caller.owns(id), event_id=write_id)
    return Response(status_code=204)


@router.post("/conversations/{id}/messages", status_code=201)
async def add_message(id: Id, given: MessageInput, caller: Writer, write_id: WriteId) -> MessageRecord:
    """Appends a message that was made elsewhere; no model answers it."""
    turn = NewTurn(
        role=given.role,
        content=given.content,
        agent=given.agentType,
        tool_calls=given.toolCalls,
        tokens_out=given.tokensUsed,
        latency_ms=given.latencyMs,
        id=write_id,
    )
    place = await caller.claims(id)
    stored = await turns.add_turn(*place, turn, user=caller.user)
    page = await turns.transcript(*place, limit=1, after_seq=stored.seq - 1)
    return _message(id, page.turns[0])


@router.get("/conversations/{id}/messages")
async def list_messages(id: Id, caller: Reader, limit: Limit = 50) -> list[MessageRecord]:
    """The newest ones, oldest first."""
    page = await turns.transcript(*await caller.owns(id), limit=limit, newest=True)
    return [_message(id, one) for one in page.turns]


@router.get("/memories")
async def list_memories(
    caller: Reader,
    type: MemoryKind | None = None,
    category: Annotated[str | None, Query(max_length=200)] = None,
    minImportance: Annotated[float, Query(ge=0, le=1)] = 0.0,
    limit: Limit = 50,
) -> list[MemoryRecord]:
    which = MemoryFilter((type,) if type else (), category, minImportance)
    return [_memory(one) for one in await memories.list_memories(*_whose(caller), which, limit)]


@router.post("/memories", status_code=201)
async def add_memory(given: NewMemory, caller: Writer, write_id: WriteId) -> MemoryRecord:
    stored = MemoryInput(given.content, given.type, given.category, given.importance, given.expiresAt, given.metadata)
    made = await memory_changes.remember(*_whose(caller), stored, write_id)
    return _memory(await memories.find_memory(*_whose(caller), str(made.memory_id)))


@router.delete("/memories/{id}", status_code=204)
async def delete_memory(id: UUID, caller: Writer) -> Response:
    await memory_changes.forget_memory(*_whose(caller), str(id))
    return Response(status_code=204)


@router.patch("/memories/{id}/importance")
async def rate_memory(id: UUID, given: Importance, caller: Writer) -> MemoryRecord:
    await memory_changes.rate_memory(*_whose(caller), str(id), given.importance)
    return _memory(await memories.find_memory(*_whose(caller), str(id)))


@router.get("/entities")
async def list_entities(caller: Reader, type: str | None = None, limit: Limit = 50) -> list[EntityRecord]:
    return [_entity(caller, one) for one in await entities.list_entities(*_whose(caller), type, limit)]


@router.post("/entities", status_code=201)
async def add_entity(given: NewEntity, caller: Writer) -> EntityRecord:
    return _entity(caller, await entities.add_entity(*_whose(caller), given.stored_as()))


@router.put("/entities/{id}")
async def update_entity(id: UUID, given: EntityChange, caller: Writer) -> EntityRecord:
    """A description or attribute replaces the one before, relations add up."""
    for one in await entities.list_entities(*_whose(caller), limit=_ALL):
        if _entity(caller, one).id == id:
            changed = NewEntity(type=one.type, name=one.name, **dict(given)).stored_as()
            return _entity(caller, await entities.update_entity(*_whose(caller), changed))
    raise NotFound(f"there is no entity {id}")


@router.get("/user-data/export", response_class=StreamingResponse)
async def export(caller: Eraser) -> StreamingResponse:
    """All that is stored of the caller, with personal details masked."""
    return as_file(exported(caller, SanitiseLevel.MODERATE))


router.delete("/user-data")(clear)


async def _events(thread: str, running: Running[Piece]) -> AsyncIterator[bytes]:
    try:
        async with aclosing(_steps(thread, running)) as steps:
            async for event, data in steps:
                yield format_sse_event(event=event, data_str=to_json(data).decode())
    except TurnlogError as error:
        yield format_sse_event(event="error", data_str=bytes(problem_of(error).body).decode())


async def _steps(thread: str, running: Running[Piece]) -> AsyncGenerator[tuple[str, Any]]:
    """(event, data) of E 3.1."""
    used = list[str]()
    async with aclosing(running.read()) as pieces:
        async for _, piece in pieces:
            match piece:
                case Text(text=text):
                    yield "content", {"chunk": text}
                case ToolUsed(name=name, arguments=arguments):
                    used.append(name)
                    yield "tool_start", {"name": name, "args": arguments}
                case ToolReturned(name=name, result=result):
                    yield "tool_end", {"name": name, "result": result}
                case Restarted():
                    yield "restart", {}
                case Answered(answer=answer):
                    about = {"agentType": AGENT, "conversationId": thread, "toolsUsed": used}
                    yield "done", {"response": {"message": answer, **about}}


def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams


def _whose(caller: Caller) -> tuple[Any, str, str]:
    return caller.runtime, caller.tenant, caller.user


async def _guards(caller: Caller, thread: str | None) -> list[Guard]:
    return await limits.usage_left(*_whose(caller), caller.identity.role, thread, AGENT)


def _message(conversation: str, turn: Message) -> MessageRecord:
    return MessageRecord(
        id=turn.event_id,
        conversationId=conversation,
        role=turn.role,
        content=content_text(turn.content),
        agentType=turn.agent,
        toolCalls=turn.tool_calls,
        createdAt=turn.time,
    )


def _memory(view: MemoryView) -> MemoryRecord:
    return MemoryRecord(
        id=view.id,
        userId=view.user,
        type=view.kind,
        category=view.category,
        content=view.content,
        importance=view.score.importance,
        accessCount=view.access_count,
        lastAccessedAt=view.last_accessed_at,
        metadata=view.metadata,
        createdAt=view.created_at,
    )


def _entity(caller: Caller, found: EntityFound) -> EntityRecord:
    relations = [Relation(type=one["type"], targetName=one["target"]) for one in found.relations]
    return EntityRecord(
        id=uuid5(_ENTITIES, "\0".join((caller.tenant, caller.user, found.type, found.name))),
        userId=caller.user,
        type=found.type,
        name=found.name,
        description=found.description,
        attributes=found.attributes,
        relations=relations,
        createdAt=found.first_seen_at,
    )
