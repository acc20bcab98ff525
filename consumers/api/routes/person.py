"""The caller as a person: entities, preferences, usage, short-term sessions, receipts."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, Field

from turnlog.agent.answering import context
from turnlog.agent.answering.context import ReceiptFound
from turnlog.agent.conversations.sessions import session_calls
from turnlog.agent.conversations.sessions.value import MemoryContext, SessionChanges, SessionValue
from turnlog.agent.memory import entities, preferences
from turnlog.agent.memory.entities import EntityFound, EntityInput
from turnlog.agent.operations import usage
from turnlog.agent.operations.usage import Usage
from turnlog.agent.recall import profile as profiles
from turnlog.agent.recall.profile import Profile
from turnlog.consumers.api.bodies import JsonObject, RequestBody
from turnlog.consumers.api.pages import Cursor, Limit, Page, moment, page_after, page_of, place_of
from turnlog.consumers.api.principal import OfUser, Reader, WriteId, Writer
from turnlog.consumers.api.routes.threads import ThreadId
from turnlog.events.contracts import UserPreferences
from turnlog.projectors.models.sessions.lookup import SegmentCheckpoint

router = APIRouter(prefix="/api", tags=["person"])


class NewPreferences(RequestBody):
    """Changes of preferences. set: values by name; others stay as they are. clear: names of preferences to remove."""

    set: JsonObject = Field({})
    clear: list[str] = Field([])


class NewSession(RequestBody):
    """The rules of a new session. window: size of the model's window in tokens. threshold: the share of the window from
    which a summary is due. recent_turns: the number of newest turns that a summary leaves in full."""

    window: int | None = Field(None, ge=256, le=100_000_000)
    threshold: float | None = Field(None, gt=0, le=1)
    recent_turns: int | None = Field(None, ge=0, le=1_000)


class NewCheckpoint(RequestBody):
    summary: str = Field(min_length=1, max_length=200_000)
    recent_turns: int | None = Field(None, ge=0, le=1_000)


@router.get("/profile")
async def get_profile(
    caller: Reader,
    as_of: Annotated[AwareDatetime | None, Query(description="As of then.")] = None,
    max_tokens: Annotated[
        int, Query(ge=profiles.LEAST_TOKENS, le=profiles.MOST_TOKENS, description="Maximum number of tokens.")
    ] = profiles.TOKENS,
) -> Profile:
    """Returns who the caller is: lines in groups, most important first, each with its quote and turn."""
    return await profiles.profile(*caller.person, as_of, max_tokens)


@router.get("/entities")
async def list_entities(
    caller: Reader,
    type: Annotated[str | None, Query(max_length=100)] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    user: OfUser = None,
) -> Page[EntityFound]:
    """Lists entities, most mentioned first."""
    after = place_of(cursor, int, datetime, str, str)
    known = await entities.list_entities(*caller.person_named(user), type, limit + 1, after)
    return page_of(known, limit, lambda each: (each.mention_count, moment(each.last_seen_at), each.type, each.name))


@router.post("/entities", status_code=201)
async def add_entity(body: EntityInput, caller: Writer) -> EntityFound:
    """Adds a person, school, event, topic or other thing that the caller has to do with."""
    return await entities.add_entity(*caller.person, body)


@router.patch("/entities")
async def update_entity(body: EntityInput, caller: Writer) -> EntityFound:
    """Adds to the entity of this type and name: a description or attribute replaces the previous one."""
    return await entities.update_entity(*caller.person, body)


@router.get("/preferences")
async def show_preferences(caller: Reader) -> UserPreferences:
    """Returns the caller's preferences."""
    return await preferences.show_preferences(*caller.person)


@router.patch("/preferences")
async def set_preferences(body: NewPreferences, caller: Writer, write_id: WriteId) -> UserPreferences:
    """Sets and clears some of the caller's preferences."""
    return await preferences.set_preferences(*caller.person, body.set, body.clear, event_id=write_id)


@router.get("/usage")
async def get_usage(caller: Reader, by: Literal["agent", "model", "day", "month"] = "day") -> list[Usage]:
    """Returns calls, tokens and cost of language and embedding models for the caller."""
    return await usage.usage(*caller.person, by)


@router.get("/threads/{thread}/receipts")
async def list_receipts(
    thread: ThreadId,
    caller: Reader,
    since: Annotated[int, Query(ge=0, le=2**62, description="From this sequence of the log on.")] = 0,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[ReceiptFound]:
    """Lists what the model saw for each answer, oldest first."""
    receipts = await context.list_receipts(*await caller.owns(thread), since)
    return page_after(receipts, limit, cursor, lambda receipt: (receipt.seq,))


@router.put("/threads/{thread}/session", tags=["sessions"])
async def create_session(thread: ThreadId, caller: Writer, body: NewSession = NewSession()) -> SessionValue:
    """Begins a session on the conversation's turns; an existing session begins again."""
    return await session_calls.create_session(*await caller.owns(thread), caller.user, **dict(body))


@router.get("/threads/{thread}/session", tags=["sessions"])
async def show_session(thread: ThreadId, caller: Reader) -> SessionValue:
    """Returns the short-term memory of a conversation."""
    return await session_calls.show_session(*await caller.owns(thread))


@router.patch("/threads/{thread}/session", tags=["sessions"])
async def change_session(thread: ThreadId, body: SessionChanges, caller: Writer) -> SessionValue:
    """Changes the session's agent, slots, intent, pending action, or what it knows about the user, by JSON merge
    patches."""
    return await session_calls.change_session(*await caller.owns(thread), body)


@router.get("/threads/{thread}/session/context", tags=["sessions"])
async def session_context(
    thread: ThreadId, caller: Reader, query: Annotated[str, Query(max_length=20_000)] = ""
) -> MemoryContext:
    """Returns the session's history as a prompt gets it, and requests a summary if one is due."""
    return await session_calls.session_context(*await caller.owns(thread), query)


@router.post("/threads/{thread}/session/reset", tags=["sessions"])
async def reset_session(thread: ThreadId, caller: Writer) -> SessionValue:
    """Resets the session: earlier turns leave the session, but stay in the transcript."""
    return await session_calls.reset_session(*await caller.owns(thread))


@router.get("/threads/{thread}/session/checkpoints", tags=["sessions"])
async def list_checkpoints(
    thread: ThreadId, caller: Reader, limit: Limit = 100, cursor: Cursor = None
) -> Page[SegmentCheckpoint]:
    """Lists checkpoints, oldest first."""
    checkpoints = await session_calls.list_checkpoints(*await caller.owns(thread))
    return page_after(checkpoints, limit, cursor, lambda checkpoint: (checkpoint.seq,))


@router.post("/threads/{thread}/session/checkpoints", status_code=201, tags=["sessions"])
async def write_checkpoint(thread: ThreadId, body: NewCheckpoint, caller: Writer) -> SessionValue:
    """Ends the current segment with this summary."""
    return await session_calls.write_checkpoint(*await caller.owns(thread), body.summary, body.recent_turns)
