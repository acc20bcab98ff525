"""Restores an archived conversation: appends its events again, in parts, so that the read models apply them."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid5

from turnlog.agent.conversations.archive.archiving import OF_ARCHIVE, SOURCE, archived_row, largest, thread_rows
from turnlog.agent.conversations.archive.files import (
    ArchiveDamaged,
    ArchivedRow,
    ArchiveMissing,
    read_archive,
    unsealed,
)
from turnlog.agent.extras import MissingExtra
from turnlog.agent.runtime import Runtime
from turnlog.events.codec import decode, encode
from turnlog.events.contracts import ARCHIVING, REMOVALS, ArchivedEvent, Event, ThreadArchived, ThreadRestored
from turnlog.events.errors import InvalidEvent, WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.sealing import key_ids_in
from turnlog.events.stored import Stored
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.thread_lookup import archived_lineage, archived_threads

logger = logging.getLogger("turnlog.archive")
PART_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class _Archived:
    """A conversation in the archive. since: its events after thread_archived. parts: those of these events that restore
    it."""

    event: Event
    data: ThreadArchived
    since: list[Stored]
    parts: list[Stored]
    head: int


async def restore(log: Log, folder: Path, tenant: str, thread: str) -> int | None:
    """Restores the conversation; returns the sequence at which it is complete again, or None if it is not archived (any
    more).

    If the file is missing or damaged, or pyarrow is not installed, this is logged, and the log itself is read instead.
    Two concurrent calls restore it once, and a call after a crash finishes the restoring. Raises LogUnavailable,
    GapInLog, KeyUnavailable.
    """
    while (archived := await _find(log, tenant, thread)) is not None:
        events = await _told_again(log, folder, archived)
        left = events[len(archived.parts) :]
        if not left:
            return archived.parts[-1].seq
        expected = None if archived.parts else archived.head
        try:
            return (await log.append_many(left, expected, fresh=not archived.parts))[-1].seq
        except WrongExpectedVersion:
            continue  # a turn was added, or another process restores it
    return None


async def _find(log: Log, tenant: str, thread: str) -> _Archived | None:
    """Returns the archived conversation; None if it is not archived, was restored already, or was removed since."""
    seq = await log.thread_head(tenant, thread, "thread_archived")
    if not seq:
        return None
    first, *since = [stored async for stored in log.read_stored(tenant, thread, seq)]
    events = [(stored, recorded.event.data) for stored in since if (recorded := incoming(stored).recorded) is not None]
    if any(data.type in REMOVALS for _, data in events):
        return None
    parts = [stored for stored, data in events if isinstance(data, ThreadRestored)]
    if any(isinstance(data, ThreadRestored) and data.part == data.parts for _, data in events):
        return None
    archived = incoming(first).recorded
    if archived is None or not isinstance(archived.event.data, ThreadArchived):
        return None
    return _Archived(archived.event, archived.event.data, since, parts, since[-1].seq if since else seq)


async def _told_again(log: Log, folder: Path, archived: _Archived) -> list[Event]:
    """Returns all parts, including those that are already stored. Every process makes equal parts, because events after
    the first part are left out."""
    end = archived.parts[0].seq if archived.parts else archived.head + 1
    rows = await _rows(log, folder, archived)
    later = [archived_row(stored) for stored in archived.since if stored.seq < end]
    rows += [row for row in later if row is not None and row.type not in ARCHIVING]
    if log.keyring is not None:
        await log.keyring.prefetch(key_ids_in(row.envelope for row in rows))
    parts = list(_parts(_opened(log, _first_of_each(rows)), min(PART_BYTES, largest(log)))) or [(None, ())]
    return [_part(archived.event, at + 1, len(parts), user, events) for at, (user, events) in enumerate(parts)]


async def _rows(log: Log, folder: Path, archived: _Archived) -> list[ArchivedRow]:
    from turnlog.projectors.models.operations.archives import own_path  # loads SQLAlchemy

    tenant = archived.event.tenant
    try:
        path = own_path(archived.event, archived.data)
        rows = await asyncio.to_thread(read_archive, folder, path, archived.data.sha256)
        if log.keyring is not None:
            await log.keyring.prefetch({row.key for row in rows if row.key is not None})
        return await asyncio.to_thread(unsealed, rows, log.keyring, tenant, path)
    except (ArchiveMissing, ArchiveDamaged, InvalidEvent, MissingExtra) as error:
        logger.warning("%s; the conversation is restored from the log itself", error)
    rows = await thread_rows(log, tenant, archived.event.thread, archived.data.through_seq)
    return [row for row in rows if row.seq >= archived.data.from_seq]


def _first_of_each(rows: Sequence[ArchivedRow]) -> list[ArchivedRow]:
    """Returns the events that the read models have dropped, each once."""
    from turnlog.projectors.models.chunks.projection import HANDLED  # loads SQLAlchemy

    first: dict[str, ArchivedRow] = {}
    for row in rows:
        if row.type in HANDLED:
            first.setdefault(row.event_id, row)
    return list(first.values())


def _opened(log: Log, rows: Sequence[ArchivedRow]) -> Iterator[tuple[str | None, ArchivedEvent]]:
    """Yields (user, event) in clear, with tombstones for events whose key was destroyed. The event `thread_restored`
    that contains them is sealed."""
    for row in rows:
        try:
            event = decode(row.envelope, log.keyring)
        except InvalidEvent:
            continue  # the projectors could not apply it either
        envelope = encode(event).decode()
        yield event.user, ArchivedEvent(seq=row.seq, stored_at=row.stored_at, envelope=envelope)


def _parts(
    events: Iterator[tuple[str | None, ArchivedEvent]], most_bytes: int
) -> Iterator[tuple[str | None, tuple[ArchivedEvent, ...]]]:
    """Yields parts; each contains events of one user only, so that it is sealed with that user's key."""
    part: list[ArchivedEvent] = []
    owner: str | None = None
    size = 0
    for user, event in events:
        length = len(event.envelope.encode())
        if part and (user != owner or size + length > most_bytes):
            yield owner, tuple(part)
            part, size = [], 0
        owner, size = user, size + length
        part.append(event)
    if part:
        yield owner, tuple(part)


def _part(archived: Event, part: int, parts: int, user: str | None, events: tuple[ArchivedEvent, ...]) -> Event:
    return Event(
        id=uuid5(OF_ARCHIVE, f"{archived.id}/{part}"),
        source=SOURCE,
        tenant=archived.tenant,
        thread=archived.thread,
        user=user,
        causation=archived.id,
        data=ThreadRestored(part=part, parts=parts, events=events),
    )


READS = ("archives", "messages", "vectors")


async def restored_if_archived(runtime: Runtime, conn: Connection, tenant: str, thread: str) -> bool:
    """Restores the thread and its archived ancestors; returns whether any was archived. If none was, this takes one
    query.

    Returns when the read models READS have applied them. Raises LogUnavailable, GapInLog, KeyUnavailable,
    NotProjectedInTime.
    """
    archived = await archived_lineage(conn, tenant, thread)
    for thread_id in archived:
        await _restored(runtime, tenant, thread_id)
    return bool(archived)


async def restored_of_user(runtime: Runtime, conn: Connection, tenant: str, user: str | None) -> int:
    """Restores all archived conversations of a user, or of a tenant if `user` is None; returns their number. Raises the
    errors of restored_if_archived."""
    archived = await archived_threads(conn, tenant, user)
    for thread_id in archived:
        await _restored(runtime, tenant, thread_id)
    return len(archived)


async def _restored(runtime: Runtime, tenant: str, thread: str) -> None:
    await restore(runtime.log, runtime.settings.archive, tenant, thread)
    await runtime.wait_until_thread_projected(tenant, thread, READS)
