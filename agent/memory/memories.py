"""Reads a user's memories: lists, single memories, histories and open questions."""

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import get_args
from uuid import UUID

from turnlog.agent.memory.deciding.by_hand import InvalidMemory, checked_share
from turnlog.agent.memory.deciding.policy import Policy, Score, score
from turnlog.agent.memory.deciding.writing import Place
from turnlog.agent.memory.extraction.evidence import roles
from turnlog.agent.runtime import Runtime, finished_through
from turnlog.events.contracts import MemoryKind
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.extraction_lookup import unread_turns
from turnlog.projectors.models.memories.history_lookup import history
from turnlog.projectors.models.memories.lookup import (
    Conflict,
    LastSaid,
    MemoryRow,
    StoredMemory,
    conflicts,
    every_memory,
    memories_as_of,
    memories_by_prefix,
    memories_with_words,
    users_with_memory,
    valid_memories,
)
from turnlog.projectors.models.terms import has_words, terms

READS = ("memories",)
PAGE = 500
MIN_WORDS_CHARS, MAX_WITH_WORDS, MAX_SHOWN = 2, 1_000, 10
_PART_OF_ID = re.compile(r"[0-9a-f]{4,8}(?:-?[0-9a-f]{0,4}){0,3}(?:-[0-9a-f]{0,12})?", re.IGNORECASE)


class AmbiguousMemory(TurnlogError):
    """The input matches more than one memory, or is too short to identify one. candidates: `id` and `content` of each
    memory that matches."""

    code = "ambiguous-memory"
    candidates: Sequence[Mapping[str, str]] = ()

    def __init__(self, message: str, candidates: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.candidates = candidates


@dataclass(frozen=True, slots=True)
class MemoryView(MemoryRow):
    """A memory with its score at the requested time."""

    score: Score


@dataclass(frozen=True, slots=True)
class MemoryFilter:
    """Selects memories of a user. kinds, category: () and None mean all. min_importance: 0 to 1, the lowest importance
    at the requested time. as_of: select memories that were valid at this time. every: select memories in any status,
    including closed and forgotten ones."""

    kinds: tuple[MemoryKind, ...] = ()
    category: str | None = None
    min_importance: float = 0.0
    as_of: datetime | None = None
    every: bool = False


@dataclass(frozen=True, slots=True)
class MemoryHistory:
    """All versions of a memory, in the order in which they became valid."""

    memory: UUID
    history: tuple[MemoryView, ...]


ALL = MemoryFilter()


async def list_memories(
    runtime: Runtime,
    tenant: str,
    user: str,
    which: MemoryFilter = ALL,
    limit: int = 100,
    after: LastSaid | None = None,
) -> list[MemoryView]:
    """Returns the `limit` most recently said memories, highest score first.

    after: the `last_said` of an earlier list, after which this list continues. Raises InvalidToken, InvalidMemory for
    an unknown kind or an importance that is not between 0 and 1.
    """
    place, at = Place(tenant, user), which.as_of or datetime.now(UTC)
    check_kinds(which.kinds)
    checked_share("min_importance", which.min_importance)
    await _ready(runtime, place)
    policy, views = Policy.of(runtime.settings), list[MemoryView]()
    async with runtime.pool.connection() as conn:
        async for row in _rows(conn, place, which, at, limit, after):
            view = view_of(row, at, policy)
            if view.score.importance >= which.min_importance and which.category in (None, view.category):
                views.append(view)
                if len(views) == limit:
                    break
    return sorted(views, key=lambda view: -view.score.total)


@dataclass(frozen=True, slots=True)
class Extraction:
    """The result of an extraction. waiting: how many of a user's turns still wait for extraction."""

    waiting: int


async def waiting_turns(runtime: Runtime, tenant: str, user: str) -> int:
    """Returns how many turns of the user still wait for extraction, which `turnlog up` performs. If it returns 0, the
    memories and entities of all turns are in the read models, or MEMORY_EXTRACT is off. Raises LogUnavailable,
    NotProjectedInTime."""
    if not runtime.settings.extract:
        return 0
    finished = await finished_through(runtime, "extraction")
    async with runtime.reading("messages") as conn:
        waiting = await unread_turns(conn, tenant, user, roles(runtime.settings.extract_tool_results), finished)
    if not waiting:
        await runtime.wait_until_thread_projected(tenant, memory_thread(user), ("memories", "entities"))
    return waiting


def last_said(memories: Sequence[MemoryRow]) -> LastSaid:
    """Returns the position of the last of these memories in a list by the time of the last statement, latest first; the
    next page begins after it."""
    # Of memories said at the same time, the list has the smallest id first.
    by_id = sorted(memories, key=lambda memory: memory.id, reverse=True)
    last = min(by_id, key=lambda memory: (memory.confirmed_at, memory.seq))
    return last.confirmed_at, last.seq, last.id


async def find_memory(runtime: Runtime, tenant: str, user: str, reference: str) -> MemoryView:
    """Returns the memory that `reference` names by its id, the beginning of its id, or words that only this memory
    contains.

    Memories in use take precedence over those that ended. Raises InvalidToken, NotFound, AmbiguousMemory (also for
    empty words).
    """
    place = Place(tenant, user)
    await _ready(runtime, place)
    async with runtime.pool.connection() as conn:
        row = await _the_memory(conn, place, reference)
    return view_of(row, datetime.now(UTC), Policy.of(runtime.settings))


async def memory_history(runtime: Runtime, tenant: str, user: str | None, reference: str) -> MemoryHistory:
    """Returns every version of a memory. reference: as for find_memory. user: None stands for the memory's owner;
    `reference` must then be a complete id.

    Raises InvalidToken, NotFound, AmbiguousMemory.
    """
    async with runtime.reading(*READS) as conn:
        place = Place(tenant, user if user is not None else await _owner(conn, tenant, reference))
        row = await _the_memory(conn, place, reference)
        rows = await history(conn, place.tenant, place.thread, row.id)
    now, policy = datetime.now(UTC), Policy.of(runtime.settings)
    return MemoryHistory(row.id, tuple(view_of(version, now, policy) for version in rows))


async def list_conflicts(runtime: Runtime, tenant: str, user: str, answered: bool = False) -> list[Conflict]:
    """Returns contradictions that wait for the user's answer, oldest first; with `answered`, also those that were
    answered.

    Raises InvalidToken.
    """
    place = Place(tenant, user)
    await _ready(runtime, place)
    async with runtime.pool.connection() as conn:
        return await conflicts(conn, place.tenant, place.thread, answered=answered)


def view_of(row: StoredMemory, at: datetime, policy: Policy) -> MemoryView:
    """Returns the view of a row. at: the time for which the score is computed."""
    values = {field.name: getattr(row, field.name) for field in fields(MemoryRow)}
    return MemoryView(**values, score=score(row, at, policy))


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises InvalidMemory for an unknown kind."""
    known = get_args(MemoryKind)
    if unknown := [kind for kind in kinds if kind not in known]:
        raise InvalidMemory(f"{unknown[0]!r} is not a kind of memory; use one of {', '.join(known)}")


async def _ready(runtime: Runtime, place: Place) -> None:
    """Waits until the rows are up to date. Raises InvalidToken, NotProjectedInTime."""
    _ = place.thread
    await runtime.wait_until_projected(names=READS)


async def _rows(
    conn: Connection, place: Place, which: MemoryFilter, at: datetime, limit: int, after: LastSaid | None
) -> AsyncIterator[StoredMemory]:
    """Yields rows page by page, most recently said first. An index cannot order by importance, because the
    decay of importance depends on settings."""
    size = max(limit, PAGE) if which.category or which.min_importance else limit
    while True:
        page = await _page(conn, place, which, at, size, after)
        for row in page:
            yield row
        if not page or len(page) < size:
            return
        after = last_said(page)


async def _page(
    conn: Connection, place: Place, which: MemoryFilter, at: datetime, size: int, after: LastSaid | None
) -> Sequence[StoredMemory]:
    there, kinds = (place.tenant, place.thread), which.kinds
    if which.every:
        return await every_memory(conn, *there, kinds, size, after)
    if which.as_of is None:
        return await valid_memories(conn, *there, at, kinds, size, after)
    return await memories_as_of(conn, *there, at, kinds, size, after)


async def _the_memory(conn: Connection, place: Place, reference: str) -> StoredMemory:
    """Returns the memory that `reference` names. Raises NotFound, AmbiguousMemory."""
    words = " ".join(reference.split())
    if len(words) < MIN_WORDS_CHARS or not terms(words):
        raise AmbiguousMemory(
            f"{reference!r} is too short to identify a memory; give an id, or words that only this memory contains"
        )
    there, matches = (place.tenant, place.thread), dict[UUID, StoredMemory]()
    if _PART_OF_ID.fullmatch(reference):
        matches = {row.id: row for row in await memories_by_prefix(conn, *there, reference.lower())}
    for statuses in (("valid", "pending", "archived"), ("closed",)):
        if not matches or statuses != ("closed",):
            rows = await memories_with_words(conn, *there, words, statuses, MAX_WITH_WORDS)
            matches |= {row.id: row for row in rows if has_words(row.content, words)}
    if not matches:
        raise NotFound(
            f"user {place.user!r} has no memory {reference!r}; `turnlog memories --user {place.user}` lists them"
        )
    if len(matches) > 1:
        shown = tuple({"id": str(row.id), "content": row.content} for row in matches.values())[:MAX_SHOWN]
        listed = "".join(f"\n  {memory['id']}  {memory['content']}" for memory in shown)
        message = f"{reference!r} is in {len(matches)} memories; give more of the words or an id:{listed}"
        raise AmbiguousMemory(message, shown)
    return next(iter(matches.values()))


async def _owner(conn: Connection, tenant: str, reference: str) -> str:
    """Returns the user who has the memory. Raises NotFound, AmbiguousMemory if `reference` is not a complete id."""
    try:
        memory_id = UUID(reference)
    except ValueError:
        raise AmbiguousMemory("name the user: --user USER (not needed with a whole id)") from None
    users = await users_with_memory(conn, tenant, memory_id)
    if len(users) != 1:
        raise NotFound(f"there is no memory {memory_id}; `turnlog memories --user USER` lists a user's")
    return users[0]
