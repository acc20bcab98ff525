"""The short-term memory of a conversation as a session, under /short-memory, in the forms of that API."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import AliasChoices, Field

from turnlog.agent.conversations.sessions import session_calls
from turnlog.agent.conversations.sessions.value import (
    MemoryContext,
    MemoryCreateRequest,
    MemoryQueryRequest,
    MemoryWriteRequest,
    MemoryWriteResult,
    SessionValue,
    UserSnapshot,
)
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.principal import Reader, WriteId, Writer
from turnlog.projectors.models.sessions.lookup import SegmentCheckpoint

router = APIRouter(prefix="/short-memory", tags=["session memory"])
ConversationId = Annotated[str, Path(min_length=1, max_length=255)]


class Snapshot(UserSnapshot):
    """What the session knows about the user. history: another name for chronic diseases."""

    chronic_diseases: tuple[str, ...] = Field(
        (), validation_alias=AliasChoices("history", "chronic_diseases"), serialization_alias="history"
    )


class Session(SessionValue):
    """A session with the names of this API."""

    user_snapshot: Snapshot = Snapshot()


class Context(MemoryContext):
    """The history for a prompt, with the session in the form of this API."""

    session: Session


def _named(value: SessionValue) -> Session:
    return Session.model_validate(value.model_dump())


class ConversationRequest(RequestBody):
    conversation_id: str = Field(min_length=1, max_length=255)


class CheckpointRequest(ConversationRequest):
    """The body of a request for a checkpoint. recent_turns: the number of newest turns that stay in full; null means
    the session's rule."""

    summary: str = Field(min_length=1, max_length=200_000)
    recent_turns: int | None = Field(None, ge=0, le=1_000)


@router.post("/create", status_code=201)
async def create(body: MemoryCreateRequest, caller: Writer, _: WriteId) -> Session:
    """Begins a session; an existing session begins again. user_id: the caller's, if given."""
    caller.check_user(body.user_id)
    place = await caller.claims(body.conversation_id)
    whose = {"user_id": caller.user, "conversation_id": place[2]}
    return _named(await session_calls.create_requested(place[0], place[1], body.model_copy(update=whose)))


@router.post("/query")
async def query(body: MemoryQueryRequest, caller: Reader) -> Context:
    """Returns the history for a prompt, and requests a summary if one is due. enterprise_id: the caller's tenant, if
    given. patient_id: the caller, if given.
    """
    runtime, tenant, thread = await caller.owns(body.conversation_id)
    made = await session_calls.query_memory(runtime, tenant, body.model_copy(update={"conversation_id": thread}))
    return Context.model_validate(made.model_dump())


@router.post("/write", status_code=201)
async def write(body: MemoryWriteRequest, caller: Writer, write_id: WriteId) -> MemoryWriteResult:
    """Appends the question, the answer or both. turn_id: makes a retry safe; a turn sent twice with the same id is
    stored once."""
    caller.check_user(body.user_id)
    runtime, tenant, thread = await caller.owns(body.conversation_id)
    whose = {"user_id": caller.user, "conversation_id": thread, "turn_id": body.turn_id or write_id}
    return await session_calls.write_turn(runtime, tenant, body.model_copy(update=whose))


@router.post("/checkpoint", status_code=201)
async def checkpoint(body: CheckpointRequest, caller: Writer, _: WriteId) -> Session:
    """Ends the current segment with this summary."""
    place = await caller.owns(body.conversation_id)
    return _named(await session_calls.write_checkpoint(*place, body.summary, body.recent_turns))


@router.post("/reset")
async def reset(body: ConversationRequest, caller: Writer, _: WriteId) -> Session:
    """Resets the session: earlier turns leave the session, but stay in the transcript."""
    return _named(await session_calls.reset_session(*await caller.owns(body.conversation_id)))


@router.get("/sessions/{conversation_id}")
async def get(conversation_id: ConversationId, caller: Reader) -> Session:
    """Returns the session."""
    return _named(await session_calls.show_session(*await caller.owns(conversation_id)))


@router.put("/sessions/{conversation_id}")
async def put(conversation_id: ConversationId, body: SessionValue, caller: Writer, _: WriteId) -> Session:
    """Sets current_agent_key, global_state and user_snapshot; everything else follows from the conversation."""
    return _named(await session_calls.change_session(*await caller.owns(conversation_id), body))


@router.get("/sessions/{conversation_id}/checkpoints")
async def checkpoints(conversation_id: ConversationId, caller: Reader) -> list[SegmentCheckpoint]:
    """Lists checkpoints, oldest first."""
    return await session_calls.list_checkpoints(*await caller.owns(conversation_id))
