"""Routes for conversations, memories and entities under /ai-agent, with the field names of that API.

They call the same functions as turnlog's own routes.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
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
from turnlog.agent.memory import entities, memories
from turnlog.agent.memory.memory_changes import MemoryInput
from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel
from turnlog.agent.privacy import personal_data
from turnlog.consumers.api.bodies import CamelBody, JsonObject, Tokens
from turnlog.consumers.api.dialects.ai_agent_records import (
    ConversationRecord,
    EntityRecord,
    MemoryRecord,
    MessageRecord,
    NewEntity,
    Relation,
    entity_records,
)
from turnlog.consumers.api.pages import Limit, items_of
from turnlog.consumers.api.principal import Eraser, Place, Principal, Reader, WriteId, Writer
from turnlog.consumers.api.routes import memories as own_memories
from turnlog.consumers.api.routes import person as own_person
from turnlog.consumers.api.routes import threads as own_threads
from turnlog.consumers.api.routes import turns as own_turns
from turnlog.consumers.api.routes.memories import Importance
from turnlog.consumers.api.routes.personal import as_file, clear
from turnlog.events.contracts import MemoryKind
from turnlog.events.errors import NotFound
from turnlog.events.publish import Appended
from turnlog.projectors.models.conversation.message import Message

router = APIRouter(prefix="/ai-agent", tags=["ai-agent"])
Id = Annotated[str, Path(min_length=1, max_length=255)]
HeaderCursor = Annotated[str | None, Query(max_length=2_000, description="X-Next-Cursor of the previous page.")]
_ALL = 2**31
WORDS = frozenset({"title", "summary", "content", "category", "toolCalls", "metadata"})


class NewConversation(CamelBody):
    title: str | None = Field(None, max_length=1_000)
    metadata: JsonObject | None = None


class MessageInput(CamelBody):
    role: Literal["user", "assistant", "tool", "system"]
    content: str
    agent: str | None = Field(None, alias="agentType")
    tool_calls: list[JsonObject] = Field([])
    tokens_out: Tokens | None = Field(None, alias="tokensUsed")
    latency_ms: float | None = Field(None, ge=0)


class NewMemory(CamelBody):
    kind: MemoryKind | None = Field(None, alias="type")
    category: str | None = None
    content: str = Field(min_length=1, max_length=20_000)
    importance: float | None = Field(None, ge=0, le=1)
    metadata: JsonObject | None = None
    expires_at: AwareDatetime | None = None


class EntityChange(CamelBody):
    description: str | None = None
    attributes: JsonObject = Field({})
    relations: list[Relation] = Field([])


@router.post("/conversations", status_code=201)
async def create_conversation(conversation: NewConversation, caller: Writer, write_id: WriteId) -> ConversationRecord:
    """Opens a conversation."""
    place = await caller.claims(str(write_id))
    if conversation.title is not None or conversation.metadata is not None:
        title, metadata = conversation.title, conversation.metadata
        await threads.open_thread(*place, caller.user, title, metadata=metadata, event_id=write_id)
    return await get_conversation(str(write_id), caller)


@router.get("/conversations")
async def list_conversations(
    caller: Reader, response: Response, limit: Limit = 50, cursor: HeaderCursor = None
) -> list[ConversationRecord]:
    """Lists conversations, most recently active first."""
    page = await own_threads.list_threads(caller, limit, cursor)
    return [ConversationRecord.of(caller, thread) for thread in items_of(page, response)]


@router.get("/conversations/{id}")
async def get_conversation(id: Id, caller: Reader) -> ConversationRecord:
    """Returns a conversation of the caller."""
    return ConversationRecord.of(caller, await threads.get_thread(*await caller.owns(id)))


@router.delete("/conversations/{id}", status_code=204)
async def delete_conversation(id: Id, caller: Writer, write_id: WriteId) -> Response:
    """Removes a conversation from every read model; memories that were extracted from it stay."""
    return await own_threads.delete_thread(id, caller, write_id)


@router.post("/conversations/{id}/messages", status_code=201)
async def add_message(id: Id, message: MessageInput, caller: Writer, write_id: WriteId) -> MessageRecord:
    """Appends a message that was written elsewhere; no model answers it."""
    turn = NewTurn(**dict(message), id=write_id)

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
    """Lists the newest messages, oldest first; the next page has earlier ones."""
    page = await own_turns.list_turns(id, caller, response, limit, cursor, newest=True)
    shown = items_of(page, response)
    return await _messages(await caller.owns(id), shown)


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
    """Lists the most recently said memories, highest score first; the next page has those said earlier."""
    kinds = [type] if type else None
    page = await own_memories.list_memories(caller, kinds, category, minImportance, limit=limit, cursor=cursor)
    return [MemoryRecord.of(memory) for memory in items_of(page, response)]


@router.post("/memories", status_code=201)
async def add_memory(memory: NewMemory, caller: Writer, write_id: WriteId) -> MemoryRecord:
    """Stores a memory as the caller worded it."""
    made = await own_memories.remember(MemoryInput(**dict(memory)), caller, write_id)
    return MemoryRecord.of(await own_memories.get_memory(made.memory_id, caller))


@router.delete("/memories/{id}", status_code=204)
async def delete_memory(id: UUID, caller: Writer) -> Response:
    """Forgets a memory."""
    await own_memories.forget_memory(id, caller)
    return Response(status_code=204)


@router.patch("/memories/{id}/importance")
async def rate_memory(id: UUID, importance: Importance, caller: Writer) -> MemoryRecord:
    """Sets how important a memory is, from 0 to 1."""
    await own_memories.rate_memory(id, importance, caller)
    return MemoryRecord.of(await own_memories.get_memory(id, caller))


@router.get("/entities")
async def list_entities(
    caller: Reader, response: Response, type: str | None = None, limit: Limit = 50, cursor: HeaderCursor = None
) -> list[EntityRecord]:
    """Lists entities, most mentioned first."""
    page = await own_person.list_entities(caller, type and type.upper(), limit, cursor)
    return await entity_records(caller, items_of(page, response))


@router.post("/entities", status_code=201)
async def add_entity(entity: NewEntity, caller: Writer) -> EntityRecord:
    """Adds an entity of the caller."""
    stored = entity.stored_as(await entities.entities_by_id(*caller.person))
    return (await entity_records(caller, [await entities.add_entity(*caller.person, stored)]))[0]


@router.put("/entities/{id}")
async def update_entity(id: UUID, change: EntityChange, caller: Writer) -> EntityRecord:
    """Changes an entity: a description or attribute replaces the previous one, relations are added."""
    known = await entities.entities_by_id(*caller.person)
    if id not in known:
        raise NotFound(f"there is no entity {id}")
    changed = NewEntity(type=known[id].type, name=known[id].name, **dict(change)).stored_as(known)
    return (await entity_records(caller, [await entities.update_entity(*caller.person, changed)]))[0]


@router.get("/user-data/export", response_class=StreamingResponse)
async def export(caller: Eraser) -> StreamingResponse:
    """Returns {userId, memories, conversations with their messages, exportedAt, sanitizeLevel}: records in the form of
    the other routes, with personal details masked. POST /api/export gives all that is stored of the caller."""
    return as_file(_exported(caller))


router.delete("/user-data")(clear)


async def _messages(place: Place, messages: Sequence[Message]) -> list[MessageRecord]:
    costs = await costs_of(*place, messages)
    return [MessageRecord.of(place[2], message, costs.get(message.seq)) for message in messages]


async def _exported(caller: Principal) -> AsyncIterator[str]:
    """Yields pieces of JSON text; holds the messages of at most one conversation in memory."""
    level, whose = SanitiseLevel.MODERATE, caller.person
    head = {"userId": caller.user, "exportedAt": datetime.now(UTC), "sanitizeLevel": level.name}
    yield to_json(head).decode()[:-1] + ', "memories": ['
    for at, memory in enumerate(await memories.list_memories(*whose, limit=_ALL)):
        yield ("," if at else "") + _masked(caller, MemoryRecord.of(memory))
    yield '], "conversations": ['
    for at, thread in enumerate(await threads.list_threads(*whose, limit=_ALL)):
        place = (caller.runtime, caller.tenant, thread.thread)
        words = await personal_data.own_words(*place, caller.user)
        record = ConversationRecord.of(caller, replace(thread, summary=None) if words.shared else thread)
        messages = [_masked(caller, message) for message in await _messages(place, words.turns)]
        yield ("," if at else "") + f'{_masked(caller, record)[:-1]}, "messages": [{",".join(messages)}]}}'
    yield "]}\n"


def _masked(caller: Principal, record: BaseModel) -> str:
    """Returns the record as JSON, with personal details masked. Ids, names and times stay."""
    plain = record.model_dump(mode="json")
    words = {name: value for name, value in plain.items() if name in WORDS}
    return to_json(plain | personal_data.masked(caller.runtime, words, SanitiseLevel.MODERATE)).decode()
