"""Lists, shows, opens, renames and deletes conversations."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, EventData, ThreadDeleted, ThreadOpened, ThreadRenamed
from turnlog.events.errors import NotFound
from turnlog.events.publish import Appended
from turnlog.events.subjects import check_place
from turnlog.projectors.models.conversation.thread_lookup import archived_threads, one_thread, thread_marks
from turnlog.projectors.models.conversation.thread_lookup import list_threads as activity

SOURCE = "turnlog/threads"
READS = ("thread_activity", "archives")
_PAGE = 500


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A conversation in a list. archived: its turns are in a file until somebody reads or continues it. summary: of its
    older turns. metadata: the opening client's own data."""

    thread: str
    label: str | None
    user: str | None
    messages: int
    last_active_at: datetime
    archived: bool = False
    created_at: datetime | None = None
    summary: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ThreadMarks:
    """The marks of a thread in a list. tokens: used by models for its answers. parked: one of its events could not be
    applied, and later ones wait."""

    thread: str
    tokens: int
    parked: bool
    label: str | None


async def list_threads(
    runtime: Runtime,
    tenant: str,
    user: str | None = None,
    limit: int = 100,
    after: tuple[datetime, str] | None = None,
) -> list[ThreadInfo]:
    """Returns conversations of a tenant, or of one user, most recently active first.

    after: last_active_at and id of the conversation after which the list continues. Raises InvalidToken.
    """
    check_place(tenant, user=user)
    async with runtime.reading(*READS) as conn:
        archived = set(await archived_threads(conn, tenant))
        rows = await activity(conn, tenant, user, limit, after)
    return [_info(row, row["thread_id"] in archived) for row in rows]


async def find_threads(
    runtime: Runtime,
    tenant: str,
    user: str,
    query: str | None,
    limit: int,
    after: tuple[datetime, str] | None = None,
) -> list[ThreadInfo]:
    """Returns conversations like list_threads. query: text that their label or id must contain, ignoring case."""
    if query is None:
        return await list_threads(runtime, tenant, user, limit, after)
    matches: list[ThreadInfo] = []
    while len(matches) < limit:
        page = await list_threads(runtime, tenant, user, _PAGE, after)
        matches += [
            thread for thread in page if query.casefold() in f"{thread.label or ''}\n{thread.thread}".casefold()
        ]
        if len(page) < _PAGE:
            break
        after = (page[-1].last_active_at, page[-1].thread)
    return matches[:limit]


async def marks_of(runtime: Runtime, tenant: str, user: str, threads: Sequence[str]) -> list[ThreadMarks]:
    """Returns the marks that a list shows beside a user's conversations; unknown conversations are left out. Raises
    InvalidToken."""
    for thread in threads:
        check_place(tenant, thread, user)
    async with runtime.pool.connection() as conn:
        return [ThreadMarks(*marks) for marks in await thread_marks(conn, tenant, user, threads)]


async def get_thread(runtime: Runtime, tenant: str, thread: str) -> ThreadInfo:
    """Returns the list entry of a thread. Raises NotFound, InvalidToken."""
    check_place(tenant, thread)
    async with runtime.reading(*READS, of=(tenant, thread)) as conn:
        row = await one_thread(conn, tenant, thread)
        archived = await archived_threads(conn, tenant)
    if row is None:
        raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
    return _info(row, thread in archived)


async def thread_version(runtime: Runtime, tenant: str, thread: str) -> int:
    """Returns the sequence of the thread's last event, which an append may expect; 0 if there is none. Raises
    InvalidToken."""
    check_place(tenant, thread)
    return await runtime.log.thread_head(tenant, thread)


async def open_thread(
    runtime: Runtime,
    tenant: str,
    thread: str,
    user: str | None = None,
    label: str | None = None,
    *,
    metadata: dict[str, Any] | None = None,
    must_be_new: bool = False,
    event_id: UUID | None = None,
) -> Appended:
    """Opens a thread without turns, so that it is listed; if it exists, a label or metadata replaces the present one.

    A first turn opens its thread too, so this call is optional. must_be_new: raises WrongExpectedVersion for a
    thread id that was ever used. Raises InvalidToken.
    """
    check_place(tenant, thread, user)
    event = _event(tenant, thread, user, ThreadOpened(label=label, metadata=metadata), event_id)
    return await runtime.log.append(event, 0 if must_be_new else None)


async def rename_thread(
    runtime: Runtime, tenant: str, thread: str, label: str, *, event_id: UUID | None = None
) -> Appended:
    """Changes the label of a thread. Raises NotFound, InvalidToken."""
    known = await get_thread(runtime, tenant, thread)
    return await runtime.log.append(_event(tenant, thread, known.user, ThreadRenamed(label=label), event_id))


async def delete_thread(runtime: Runtime, tenant: str, thread: str, *, event_id: UUID | None = None) -> Appended:
    """Deletes a thread. Every read model drops its rows; when this returns, lists and reads no longer find the thread.

    The events stay in the log, and memories that were extracted from the thread stay; erasing a person removes both.
    Raises NotFound, InvalidToken.
    """
    known = await get_thread(runtime, tenant, thread)
    done = await runtime.log.append(_event(tenant, thread, known.user, ThreadDeleted(), event_id))
    await runtime.wait_until_thread_projected(tenant, thread, READS)
    return done


def _event(tenant: str, thread: str, user: str | None, data: EventData, event_id: UUID | None) -> Event:
    return Event(id=event_id or uuid7(), source=SOURCE, tenant=tenant, thread=thread, user=user, data=data)


def _info(row: dict[str, Any], archived: bool) -> ThreadInfo:
    about = {name: row[name] for name in ("label", "last_active_at", "created_at", "summary", "metadata")}
    return ThreadInfo(row["thread_id"], user=row["user_id"], messages=row["message_count"], archived=archived, **about)
