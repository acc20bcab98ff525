"""Cold conversations go into files: first the file, then the event that takes them out of the read models (L4)."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid5

from turnlog.agent.archive.files import ArchivedRow, path_of, remove, write_archive
from turnlog.agent.archive.reading import thread_rows
from turnlog.events.contracts import Event
from turnlog.events.errors import WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.memory_contracts import ThreadArchived
from turnlog.projectors.archive_lookup import Cold

SOURCE = "turnlog/archive"
OF_ARCHIVE = UUID("0c0fa1c7-4f0e-4d0f-9a5d-5f4f7a1c9f10")


async def archive_thread(log: Log, folder: Path, cold: Cold) -> bool:
    """False when the conversation went on meanwhile, has several people in it, or an event too large to be told again.

    A crash behind the file leaves one that nobody refers to; the next run writes it again. Raises OSError,
    ArchiveDamaged, LogUnavailable, GapInLog.
    """
    head = await log.thread_head(cold.tenant, cold.thread)
    rows = await thread_rows(log, cold.tenant, cold.thread, head)
    if not _fits(rows, cold, largest(log)):
        return False
    path = path_of(cold.tenant, cold.thread, rows)
    digest = await asyncio.to_thread(write_archive, folder, path, rows)
    try:
        await log.append_many([_archived(cold, head, rows, path, digest)], expected=head, fresh=True)
    except WrongExpectedVersion:
        remove(folder, [path])
        return False
    if cold.path is not None and cold.path != path:
        remove(folder, [cold.path])
    return True


def largest(log: Log) -> int:
    """Bytes of an envelope that can be carried within another event: as JSON text it may become twice as long, and
    sealed a third longer."""
    return int(log.nc.max_payload) // 3


def _fits(rows: Sequence[ArchivedRow], cold: Cold, most_bytes: int) -> bool:
    went_on = any(row.type == "turn_recorded" and row.seq > cold.last_seq for row in rows)
    people = {row.user for row in rows if row.user is not None}
    return bool(rows) and not went_on and len(people) <= 1 and all(len(row.envelope) <= most_bytes for row in rows)


def _archived(cold: Cold, head: int, rows: Sequence[ArchivedRow], path: str, digest: str) -> Event:
    return Event(
        id=uuid5(OF_ARCHIVE, f"{cold.tenant}\0{cold.thread}\0{head}"),
        source=SOURCE,
        time=datetime.now(UTC),
        tenant=cold.tenant,
        thread=cold.thread,
        user=cold.user,
        data=ThreadArchived(path=path, sha256=digest, events=len(rows), from_seq=rows[0].seq, through_seq=rows[-1].seq),
    )
