"""The memory API of seed E (11.5) under /ai-agent, in its field names, over the same use cases."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel, Field
from pydantic_core import to_json

from turnlog.agent.answering import turns
from turnlog.agent.answering.turns import NewTurn
from turnlog.agent.conversations import threads
from turnlog.agent.conversations.ownership import append_as_owner
from turnlog.agent.conversations.transcript import costs_of, transcript
from turnlog.agent.memory import entities, memories, memory_changes
from turnlog.agent.memory.entities import EntityFound
from turnlog.agent.memory.memory_changes import MemoryInput
from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel
from turnlog.agent.privacy import personal_data
from turnlog.agent.runtime import Runtime
from turnlog.consumers.api.bodies import FINITE, JsonObject, Tokens
from turnlog.consumers.api.dialects.ai_agent_records import (
    ConversationRecord,
    EntityRecord,
    MemoryRecord,
    MessageRecord,
    NewEntity,
    Relation,
    ids_by_name,
)
from turnlog.consumers.api.pages import Limit, items_of
from turnlog.consumers.api.principal import Caller, Eraser, Place, Reader, WriteId, Writer
from turnlog.consumers.api.routes import memories as own_memories
from turnlog.consumers.api.routes import person as own_person
from turnlog.consumers.api.routes import threads as own_threads
from turnlog.consumers.api.routes import turns as own_turns
from turnlog.consumers.api.routes.personal import as_file, clear
from turnlog.events.contracts import MemoryKind
from turnlog.events.errors import NotFound
from turnlog.events.publish import Appended
from turnlog.projectors.models.conversation.message import Message

router = APIRouter(prefix="/ai-agent", tags=["seed E"])
Id = Annotated[str, Path(min_length=1, max_length=255)]
HeaderCursor = Annotated[str | None, Query(max_length=2_000, description="X-Next-Cursor of the page before.")]
_ALL = 2**31
WORDS = frozenset({"title", "summary", "content", "category", "toolCalls", "metadata"})
Role = Literal["user", "assistant", "tool", "system"]


class NewConversation(BaseModel):
    model_config = FINITE
    title: str | None = Field(None, max_length=1_000)
    metadata: JsonObject | None = None


class MessageInput(BaseModel):
    model_config = FINITE
    role: Role
    content: str
    agentType: str | None = None
    toolCalls: list[JsonObject] = []
    tokensUsed: Tokens | None = None
    latencyMs: float | None = Field(None, ge=0)


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


class EntityChange(BaseModel):
    model_config = FINITE
    description: str | None = None
    attributes: JsonObject = {}
    relations: list[Relation] = []


@router.post("/conversations", status_code=201)
async def create_conversation(given: NewConversation, caller: Writer, write_id: WriteId) -> ConversationRecord:
    place = await caller.claims(str(write_id))
    if given.title is not None or given.metadata is not None:
        await threads.open_thread(*place, caller.user, given.title, metadata=given.metadata, event_id=write_id)
    return await get_conversation(str(write_id), caller)


@router.get("/conversations")
async def list_conversations(
    caller: Reader, response: Response, limit: Limit = 50, cursor: HeaderCursor = None
) -> list[ConversationRecord]:
    """Most recently active first."""
    page = await own_threads.list_threads(caller, limit, cursor)
    return [ConversationRecord.of(caller, one) for one in items_of(page, response)]


@router.get("/conversations/{id}")
async def get_conversation(id: Id, caller: Reader) -> ConversationRecord:
    return ConversationRecord.of(caller, await threads.get_thread(*await caller.owns(id)))


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

    async def append(thread: str, expected: int | None) -> tuple[Place, Appended]:
        place = (caller.runtime, caller.tenant, thread)
        return place, await turns.add_turn(*place, turn, user=caller.user, expected=expected)

    place, stored = await append_as_owner(caller.runtime, caller.tenant, id, caller.user, append)
    page = await transcript(*place, limit=1, after_seq=stored.seq - 1)
    return (await _messages(place, page.turns))[0]


@router.get("/conversations/{id}/messages")
async def list_messages(
    id: Id, caller: Reader, response: Response, limit: Limit = 50, cursor: HeaderCursor = None
) -> list[MessageRecord]:
    """The newest ones, oldest first; the next page has those before."""
    page = await own_turns.list_turns(id, caller, response, limit, cursor, newest=True)
    found = items_of(page, response)
    return await _messages(await caller.owns(id), found)


@router.get("/memories")
async def list_memories(
    caller: Reader,
    response: Response,
    type: MemoryKind | None = None,
    category: Annotated[str | None, Query(max_length=200)] = None,
    minImportance: Annotated[float, Query(ge=0, le=1)] = 0.0,
    limit: Limit = 50,
    cursor: HeaderCursor = None,
) -> list[MemoryRecord]:
    kinds = [type] if type else None
    page = await own_memories.list_memories(caller, kinds, category, minImportance, limit=limit, cursor=cursor)
    return [MemoryRecord.of(one) for one in items_of(page, response)]


@router.post("/memories", status_code=201)
async def add_memory(given: NewMemory, caller: Writer, write_id: WriteId) -> MemoryRecord:
    stored = MemoryInput(given.content, given.type, given.category, given.importance, given.expiresAt, given.metadata)
    made = await memory_changes.remember(*_whose(caller), stored, write_id)
    return MemoryRecord.of(await memories.find_memory(*_whose(caller), str(made.memory_id)))


@router.delete("/memories/{id}", status_code=204)
async def delete_memory(id: UUID, caller: Writer) -> Response:
    await memory_changes.forget_memory(*_whose(caller), str(id))
    return Response(status_code=204)


@router.patch("/memories/{id}/importance")
async def rate_memory(id: UUID, given: Importance, caller: Writer) -> MemoryRecord:
    await memory_changes.rate_memory(*_whose(caller), str(id), given.importance)
    return MemoryRecord.of(await memories.find_memory(*_whose(caller), str(id)))


@router.get("/entities")
async def list_entities(
    caller: Reader, response: Response, type: str | None = None, limit: Limit = 50, cursor: HeaderCursor = None
) -> list[EntityRecord]:
    """Most mentioned first."""
    page = await own_person.list_entities(caller, type and type.upper(), limit, cursor)
    ids = ids_by_name(await entities.entities_by_id(*_whose(caller)))
    own_id = partial(entities.entity_id, caller.tenant, caller.user)
    return [EntityRecord.of(caller.user, own_id(one.type, one.name), one, ids) for one in items_of(page, response)]


@router.post("/entities", status_code=201)
async def add_entity(given: NewEntity, caller: Writer) -> EntityRecord:
    stored = given.stored_as(await entities.entities_by_id(*_whose(caller)))
    return await _entity(caller, await entities.add_entity(*_whose(caller), stored))


@router.put("/entities/{id}")
async def update_entity(id: UUID, given: EntityChange, caller: Writer) -> EntityRecord:
    """A description or attribute replaces the one before, relations add up."""
    known = await entities.entities_by_id(*_whose(caller))
    if id not in known:
        raise NotFound(f"there is no entity {id}")
    changed = NewEntity(type=known[id].type, name=known[id].name, **dict(given)).stored_as(known)
    return await _entity(caller, await entities.update_entity(*_whose(caller), changed))


@router.get("/user-data/export", response_class=StreamingResponse)
async def export(caller: Eraser) -> StreamingResponse:
    """{userId, memories, conversations with their messages, exportedAt, sanitizeLevel}: records as the other routes
    have them, with personal details masked. POST /api/export has all that is stored of the caller."""
    return as_file(_exported(caller))


router.delete("/user-data")(clear)


def _whose(caller: Caller) -> tuple[Runtime, str, str]:
    return caller.runtime, caller.tenant, caller.user


async def _messages(place: Place, found: Sequence[Message]) -> list[MessageRecord]:
    costs = await costs_of(*place, found)
    return [MessageRecord.of(place[2], one, costs.get(one.seq)) for one in found]


async def _entity(caller: Caller, found: EntityFound) -> EntityRecord:
    id_ = entities.entity_id(caller.tenant, caller.user, found.type, found.name)
    return EntityRecord.of(caller.user, id_, found, ids_by_name(await entities.entities_by_id(*_whose(caller))))


async def _exported(caller: Caller) -> AsyncIterator[str]:
    """As pieces of JSON text, one conversation at most in memory."""
    level, place = SanitiseLevel.MODERATE, _whose(caller)
    head = {"userId": caller.user, "exportedAt": datetime.now(UTC), "sanitizeLevel": level.name}
    yield to_json(head).decode()[:-1] + ', "memories": ['
    for at, one in enumerate(await memories.list_memories(*place, limit=_ALL)):
        yield ("," if at else "") + _masked(caller, MemoryRecord.of(one))
    yield '], "conversations": ['
    for at, talk in enumerate(await threads.list_threads(*place, limit=_ALL)):
        talk_place = (caller.runtime, caller.tenant, talk.thread)
        words = await personal_data.own_words(*talk_place, caller.user)
        record = ConversationRecord.of(caller, replace(talk, summary=None) if words.shared else talk)
        said = [_masked(caller, one) for one in await _messages(talk_place, words.turns)]
        yield ("," if at else "") + f'{_masked(caller, record)[:-1]}, "messages": [{",".join(said)}]}}'
    yield "]}\n"


def _masked(caller: Caller, record: BaseModel) -> str:
    """Ids, names and times stay."""
    plain = record.model_dump(mode="json")
    words = {name: value for name, value in plain.items() if name in WORDS}
    return to_json(plain | personal_data.masked(caller.runtime, words, SanitiseLevel.MODERATE)).decode()
