"""What is remembered about the caller: list, remember, change, forget, history, contradictions."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import AwareDatetime, Field

from turnlog.agent.memory import memories, memory_changes
from turnlog.agent.memory.deciding.outcomes import Outcome
from turnlog.agent.memory.memories import Extraction, MemoryFilter, MemoryHistory, MemoryView
from turnlog.agent.memory.memory_changes import (
    ArchivedMemory,
    ConflictAnswered,
    Edited,
    Forgotten,
    MemoryInput,
    Rated,
    Reverted,
)
from turnlog.agent.operations.jobs.job_states import DecayStats, decay_stats
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.pages import Cursor, Limit, Page, moment, page_after, place_of
from turnlog.consumers.api.principal import OfUser, Reader, WriteId, Writer
from turnlog.consumers.cursors import memories_cursor
from turnlog.events.contracts import Answer, MemoryKind
from turnlog.projectors.models.memories.lookup import Conflict

router = APIRouter(prefix="/api", tags=["memories"])
MemoryId = Annotated[UUID, Path(description="The memory's id.")]
Share = Annotated[float, Field(ge=0, le=1)]


class NewContent(RequestBody):
    content: str = Field(min_length=1, max_length=20_000)


class Importance(RequestBody):
    importance: Share


class NamedMemory(RequestBody):
    """A memory to change. memory: an id, the beginning of an id, or words that only this memory contains."""

    memory: str = Field(min_length=1, max_length=20_000)


class Reason(RequestBody):
    reason: str = Field(min_length=1, max_length=1_000)


class Decision(RequestBody):
    """Which memory is valid: the new one, the old one or both."""

    answer: Answer


@router.get("/memories")
async def list_memories(
    caller: Reader,
    kind: Annotated[list[MemoryKind] | None, Query(description="Only of these kinds.")] = None,
    category: Annotated[str | None, Query(max_length=200)] = None,
    min_importance: Annotated[float, Query(ge=0, le=1, description="Minimum current importance.")] = 0.0,
    as_of: Annotated[AwareDatetime | None, Query(description="Only memories that were valid at this time.")] = None,
    every: Annotated[bool, Query(description="In any status, including ended and forgotten ones.")] = False,
    user: OfUser = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of memories.")] = 100,
    cursor: Cursor = None,
) -> Page[MemoryView]:
    """Lists the most recently said memories, highest score first; the next page has those said earlier."""
    which = MemoryFilter(tuple(kind or ()), category, min_importance, as_of, every)
    after = place_of(cursor, datetime, int, UUID)
    page = await memories.list_memories(*caller.person_named(user), which, limit + 1, after)
    if len(page) <= limit:
        return Page(items=page)
    items = [memory for memory in page if memory.id != memories.last_said(page)[2]]
    return Page(items=items, next=memories_cursor(items))


@router.get("/extraction")
async def extraction(caller: Reader) -> Extraction:
    """Returns how many of the caller's turns extraction has not read yet."""
    return Extraction(await memories.waiting_turns(*caller.person))


@router.get("/memory-stats")
async def memory_stats(caller: Reader, user: OfUser = None) -> DecayStats:
    """Returns how many of the caller's memories are in each tier, and what the decay job does next."""
    return await decay_stats(*caller.person_named(user))


@router.post("/memories", status_code=201)
async def remember(body: MemoryInput, caller: Writer, write_id: WriteId) -> Outcome:
    """Stores one claim. A memory that contradicts it ends, or the user is asked. Recall finds it by its words at once,
    by its meaning some seconds later."""
    return await memory_changes.remember(*caller.person, body, write_id)


@router.get("/memories/{memory}")
async def get_memory(memory: MemoryId, caller: Reader, user: OfUser = None) -> MemoryView:
    """Returns a memory of the caller."""
    return await memories.find_memory(*caller.person_named(user), str(memory))


@router.get("/memories/{memory}/history")
async def memory_history(memory: MemoryId, caller: Reader, user: OfUser = None) -> MemoryHistory:
    """Returns every version, in the order in which they became valid."""
    return await memories.memory_history(*caller.person_named(user), str(memory))


@router.put("/memories/{memory}/content")
async def edit_memory(memory: MemoryId, body: NewContent, caller: Writer) -> Edited:
    """Changes the words of a memory; the previous version stays in its history."""
    return await memory_changes.edit_memory(*caller.person, str(memory), body.content)


@router.put("/memories/{memory}/importance")
async def rate_memory(memory: MemoryId, body: Importance, caller: Writer) -> Rated:
    """Sets how important a memory is, from 0 to 1."""
    return await memory_changes.rate_memory(*caller.person, str(memory), body.importance)


@router.post("/memories/{memory}/revert")
async def revert_memory(memory: MemoryId, caller: Writer) -> Reverted:
    """Makes the previous version of a memory valid again."""
    return await memory_changes.revert_memory(*caller.person, str(memory))


@router.post("/memories/{memory}/archive")
async def archive_memory(memory: MemoryId, body: Reason, caller: Writer) -> ArchivedMemory:
    """Archives a memory: it is no longer recalled, but stays in its history."""
    return await memory_changes.archive_memory(*caller.person, str(memory), body.reason)


@router.delete("/memories/{memory}")
async def forget_memory(memory: MemoryId, caller: Writer) -> Forgotten:
    """Forgets a memory: removes its content, and that of all memories with the same words, from every read model."""
    return await memory_changes.forget_memory(*caller.person, str(memory))


@router.post("/memories/forget")
async def forget_named(body: NamedMemory, caller: Writer) -> Forgotten:
    """Forgets a memory that is named by words, as DELETE does by id."""
    return await memory_changes.forget_memory(*caller.person, body.memory)


@router.get("/conflicts")
async def list_conflicts(
    caller: Reader,
    answered: Annotated[bool, Query(description="Include contradictions that are settled.")] = False,
    user: OfUser = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[Conflict]:
    """Lists contradictions that wait for an answer, oldest first."""
    conflicts = await memories.list_conflicts(*caller.person_named(user), answered)
    return page_after(conflicts, limit, cursor, lambda each: (moment(each.raised_at), str(each.conflict_id)))


@router.post("/conflicts/{conflict}/answer")
async def answer_conflict(conflict: UUID, body: Decision, caller: Writer) -> ConflictAnswered:
    """Decides which of two contradictory memories is valid, or that both are."""
    return await memory_changes.answer_conflict(*caller.person, body.answer, str(conflict))
