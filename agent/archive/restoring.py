"""An archived conversation comes back: its events are told again, in parts, for the read models to apply (L4)."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid5

from turnlog.agent.archive.archiving import OF_ARCHIVE, SOURCE, largest
from turnlog.agent.archive.files import ArchiveDamaged, ArchivedRow, ArchiveMissing, read_archive
from turnlog.agent.archive.reading import archived_row, thread_rows
from turnlog.events.codec import decode, encode
from turnlog.events.contracts import Event
from turnlog.events.errors import InvalidEvent, WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.memory_contracts import ArchivedEvent, ThreadArchived, ThreadRestored
from turnlog.events.read import Stored, recorded
from turnlog.events.subjects import parse_stored
from turnlog.projectors.projection import ARCHIVING, REMOVALS
from turnlog.projectors.vectors import HANDLED

logger = logging.getLogger("turnlog.archive")
PART_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class _Archived:
    """A conversation in the archive. since: its events behind the archiving; parts: those of them that restore it."""

    event: Event
    data: ThreadArchived
    since: list[Stored]
    parts: list[Stored]
    head: int


async def restore(log: Log, folder: Path, tenant: str, thread: str) -> int | None:
    """Brings the conversation back; the sequence behind which it is back, or None when it was not in the archive.

    A file that is missing or damaged is told, and the log itself is read in its place. Two at once make one, and what
    a crash left half done is finished. Raises LogUnavailable, GapInLog, KeyUnavailable.
    """
    while (found := await _find(log, tenant, thread)) is not None:
        events = await _told_again(log, folder, found)
        left = events[len(found.parts) :]
        if not left:
            return found.parts[-1].seq
        expected = None if found.parts else found.head
        try:
            return (await log.append_many(left, expected, fresh=not found.parts))[-1].seq
        except WrongExpectedVersion:
            continue  # a turn came, or somebody else restores it
    return None


async def _find(log: Log, tenant: str, thread: str) -> _Archived | None:
    """None also for a conversation that is back, or that was removed since."""
    seq = await log.thread_head(tenant, thread, "thread_archived")
    if not seq:
        return None
    first, *since = [stored async for stored in log.read_stored(tenant, thread, seq)]
    types = [parse_stored(stored.subject).type for stored in since]
    if any(type_ in REMOVALS for type_ in types):
        return None
    parts = [stored for stored, type_ in zip(since, types, strict=True) if type_ == "thread_restored"]
    if parts and isinstance(last := recorded(parts[-1]).event.data, ThreadRestored) and last.part == last.parts:
        return None
    event = recorded(first).event
    assert isinstance(event.data, ThreadArchived)
    return _Archived(event, event.data, since, parts, since[-1].seq if since else seq)


async def _told_again(log: Log, folder: Path, found: _Archived) -> list[Event]:
    """All parts. The same ones whoever makes them: what came behind the first part is not in them."""
    end = found.parts[0].seq if found.parts else found.head + 1
    rows = await _rows(log, folder, found)
    later = [archived_row(stored) for stored in found.since if stored.seq < end]
    rows += [row for row in later if row is not None and row.type not in ARCHIVING]
    parts = list(_parts(_opened(log, _first_of_each(rows)), min(PART_BYTES, largest(log)))) or [(None, ())]
    return [_part(found.event, at + 1, len(parts), user, events) for at, (user, events) in enumerate(parts)]


async def _rows(log: Log, folder: Path, found: _Archived) -> list[ArchivedRow]:
    try:
        return await asyncio.to_thread(read_archive, folder, found.data.path, found.data.sha256)
    except (ArchiveMissing, ArchiveDamaged) as error:
        logger.warning("%s; the conversation is restored from the log itself", error)
    rows = await thread_rows(log, found.event.tenant, found.event.thread, found.data.through_seq)
    return [row for row in rows if row.seq >= found.data.from_seq]


def _first_of_each(rows: Sequence[ArchivedRow]) -> list[ArchivedRow]:
    """What the read models have dropped, each event once."""
    first: dict[str, ArchivedRow] = {}
    for row in rows:
        if row.type in HANDLED:
            first.setdefault(row.event_id, row)
    return list(first.values())


def _opened(log: Log, rows: Sequence[ArchivedRow]) -> Iterator[tuple[str | None, ArchivedEvent]]:
    """(user, event), in clear; tombstones where a key was destroyed. The part they go into seals them again."""
    for row in rows:
        try:
            event = decode(row.envelope, log.keyring)
        except InvalidEvent:
            continue  # no projector could apply it either
        envelope = encode(event).decode()
        yield event.user, ArchivedEvent(seq=row.seq, stored_at=row.stored_at, envelope=envelope)


def _parts(
    events: Iterator[tuple[str | None, ArchivedEvent]], most_bytes: int
) -> Iterator[tuple[str | None, tuple[ArchivedEvent, ...]]]:
    """Events of one user each, so that each part is sealed by the key of those who said it."""
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
        time=datetime.now(UTC),
        tenant=archived.tenant,
        thread=archived.thread,
        user=user,
        causation=archived.id,
        data=ThreadRestored(part=part, parts=parts, events=events),
    )
