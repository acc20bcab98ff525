"""Archives cold conversations: writes the file first, then appends the event that removes them from the read models."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from uuid import UUID, uuid5

from turnlog.agent.conversations.archive.files import TENANT, ArchivedRow, path_of, remove, sealed, write_archive
from turnlog.events.codec import parsed
from turnlog.events.contracts import ARCHIVING, REMOVALS, Event, ThreadArchived
from turnlog.events.contracts.base import in_calendar
from turnlog.events.errors import InvalidEvent, WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.stored import Stored
from turnlog.events.subjects import parse_stored
from turnlog.projectors.models.conversation.thread_lookup import Cold


async def thread_rows(log: Log, tenant: str, thread: str, through_seq: int) -> list[ArchivedRow]:
    """Returns all events of a thread since its last removal, without events of earlier archiving and restoring."""
    rows: list[ArchivedRow] = []
    known: set[str] = set()
    async for stored in log.read_stored(tenant, thread, 1, through_seq):
        type_ = parse_stored(stored.subject).type
        if type_ in REMOVALS:
            rows = []
        elif type_ not in ARCHIVING and (row := archived_row(stored)) is not None and row.event_id not in known:
            known.add(row.event_id)  # events with the same id count once
            rows.append(row)
    return rows


def archived_row(stored: Stored) -> ArchivedRow | None:
    """Returns the event in the form of an archive; None for a message that is not an event."""
    try:
        envelope = parsed(stored.body)
        time = in_calendar(datetime.fromisoformat(str(envelope.get("time"))))
    except (InvalidEvent, ValueError, TypeError):  # TypeError: the time has no offset
        return None
    type_, user = parse_stored(stored.subject).type, envelope.get("user")
    return ArchivedRow(
        stored.seq, stored.stored_at, str(envelope.get("id")), type_, str(user) if user else None, time, stored.body
    )


SOURCE = "turnlog/archive"
OF_ARCHIVE = UUID("0c0fa1c7-4f0e-4d0f-9a5d-5f4f7a1c9f10")


async def archive_thread(log: Log, folder: Path, cold: Cold) -> bool:
    """Archives a conversation. Returns False if it got a new event meanwhile, has several users, or has an event that
    is too large to restore.

    A crash after the file was written leaves a file without an event; the next run overwrites it if the conversation
    has no new event. Raises OSError, ArchiveDamaged, LogUnavailable, GapInLog, KeyUnavailable, MissingExtra.
    """
    head = await log.thread_head(cold.tenant, cold.thread)
    rows = await thread_rows(log, cold.tenant, cold.thread, head)
    if not _fits(rows, cold, largest(log)):
        return False
    path = path_of(cold.tenant, cold.thread, rows)
    if log.keyring is not None:
        await log.keyring.prefetch_current([(cold.tenant, TENANT)])
    kept = await asyncio.to_thread(sealed, rows, log.keyring, cold.tenant, path)
    digest = await asyncio.to_thread(write_archive, folder, path, kept)
    try:
        await log.append_many([_archived(cold, head, rows, path, digest)], expected=head, fresh=True)
    except WrongExpectedVersion:
        remove(folder, [path])
        return False
    if cold.path is not None and cold.path != path:
        remove(folder, [cold.path])
    return True


def largest(log: Log) -> int:
    """Returns the size of the largest envelope, in bytes, that fits into another event: as JSON text its size may
    double, and sealing adds a third."""
    return int(log.nc.max_payload) // 3


def _fits(rows: Sequence[ArchivedRow], cold: Cold, most_bytes: int) -> bool:
    went_on = any(row.type == "turn_recorded" and row.seq > cold.last_seq for row in rows)
    people = {row.user for row in rows if row.user is not None}
    return bool(rows) and not went_on and len(people) <= 1 and all(len(row.envelope) <= most_bytes for row in rows)


def _archived(cold: Cold, head: int, rows: Sequence[ArchivedRow], path: str, digest: str) -> Event:
    return Event(
        id=uuid5(OF_ARCHIVE, f"{cold.tenant}\0{cold.thread}\0{head}"),
        source=SOURCE,
        tenant=cold.tenant,
        thread=cold.thread,
        user=cold.user,
        data=ThreadArchived(path=path, sha256=digest, events=len(rows), from_seq=rows[0].seq, through_seq=rows[-1].seq),
    )
