"""thread_archives: the conversations that were archived to files, and the time of their restoration."""

import re
from collections.abc import Sequence

import sqlalchemy as sa

from turnlog.events.contracts import ARCHIVING, REMOVALS, Event, Recorded, ThreadArchived, ThreadRestored
from turnlog.events.errors import InvalidEvent
from turnlog.events.subjects import thread_token
from turnlog.projectors.engine.changes import Change, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz

thread_archives = thread_table(
    "thread_archives",
    sa.Column("user_id", sa.Text),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("events", sa.Integer, nullable=False),
    sa.Column("from_seq", sa.BigInteger, nullable=False),
    sa.Column("through_seq", sa.BigInteger, nullable=False),
    sa.Column("archived_at", timestamptz(), nullable=False),
    sa.Column("restored_at", timestamptz()),
)
COLUMNS = tuple(column.name for column in thread_archives.columns)
_KEYS = {column.name for column in thread_archives.primary_key}
_AGAIN = tuple((name, f"excluded.{name}") for name in COLUMNS if name not in _KEYS)

_FILE = re.compile(r"[0-9]{4}-[0-9]{2}/[~A-Za-z0-9_-]{1,200}\.parquet")  # inside the tenant's folder
_BACK = """
UPDATE thread_archives SET restored_at = %(time)s
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND restored_at IS NULL"""


def own_path(event: Event, data: ThreadArchived) -> str:
    """Returns the archive's path. Raises InvalidEvent unless it is a file of the event's own conversation.

    A foreign producer may have written any other path, and turnlog reads, overwrites and removes these files.
    """
    folder, _, name = data.path.partition("/")
    if folder != event.tenant or not _FILE.fullmatch(name) or not name[8:].startswith(thread_token(event.thread)):
        raise InvalidEvent(f"{data.path[:80]!r} is not an archive file of thread {event.thread[:80]!r}")
    return data.path


def project(batch: Sequence[Recorded]) -> list[Change]:
    """Returns the changes of one event, because every archiving event is a batch of its own."""
    event = batch[0].event
    match event.data:
        case ThreadArchived() as data:
            row = (event.tenant, event.thread, event.user, own_path(event, data), data.sha256, data.events)
            return [
                Upsert(thread_archives, COLUMNS, [(*row, data.from_seq, data.through_seq, event.time, None)], _AGAIN)
            ]
        case ThreadRestored(part=part, parts=parts) if part == parts:
            return [Statement(_BACK, [{"tenant": event.tenant, "thread": event.thread, "time": event.time}])]
    return []


ARCHIVES = Projection("archives", 1, (thread_archives,), REMOVALS | ARCHIVING, project)
