"""A conversation's events as the log has them, for the archive (L4)."""

from datetime import datetime

from turnlog.agent.archive.files import ArchivedRow
from turnlog.events.codec import parsed
from turnlog.events.errors import InvalidEvent
from turnlog.events.log import Log
from turnlog.events.read import Stored
from turnlog.events.subjects import parse_stored
from turnlog.projectors.projection import ARCHIVING, REMOVALS


async def thread_rows(log: Log, tenant: str, thread: str, through_seq: int) -> list[ArchivedRow]:
    """Everything since the last removal, without earlier archivings and what they brought back."""
    rows: list[ArchivedRow] = []
    known: set[str] = set()
    async for stored in log.read_stored(tenant, thread, 1, through_seq):
        type_ = parse_stored(stored.subject).type
        if type_ in REMOVALS:
            rows = []
        elif type_ not in ARCHIVING and (row := archived_row(stored)) is not None and row.event_id not in known:
            known.add(row.event_id)  # the same event twice is one
            rows.append(row)
    return rows


def archived_row(stored: Stored) -> ArchivedRow | None:
    """None for what is no event."""
    try:
        envelope = parsed(stored.body)
        time = datetime.fromisoformat(str(envelope.get("time")))
    except (InvalidEvent, ValueError):
        return None
    type_, user = parse_stored(stored.subject).type, envelope.get("user")
    return ArchivedRow(
        stored.seq, stored.stored_at, str(envelope.get("id")), type_, str(user) if user else None, time, stored.body
    )
