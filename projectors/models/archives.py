"""thread_archives: which conversations stand in files, and whether they are back (L4)."""

from collections.abc import Sequence

from turnlog.events.contracts import ARCHIVING, REMOVALS, Recorded, ThreadArchived, ThreadRestored
from turnlog.projectors.engine.changes import Change, DeleteThread, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.models.memories.tables import thread_archives

COLUMNS = tuple(column.name for column in thread_archives.columns)
_KEYS = {column.name for column in thread_archives.primary_key}
_AGAIN = tuple((name, f"excluded.{name}") for name in COLUMNS if name not in _KEYS)

_BACK = """
UPDATE thread_archives SET restored_at = %(time)s
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND restored_at IS NULL"""


def project(batch: Sequence[Recorded]) -> list[Change]:
    """Every event that is handled here stands alone in its batch."""
    event = batch[0].event
    if event.type in REMOVALS:
        return [DeleteThread((thread_archives,), event.tenant, event.thread)]
    match event.data:
        case ThreadArchived() as data:
            row = (event.tenant, event.thread, event.user, data.path, data.sha256, data.events)
            return [
                Upsert(thread_archives, COLUMNS, [(*row, data.from_seq, data.through_seq, event.time, None)], _AGAIN)
            ]
        case ThreadRestored(part=part, parts=parts) if part == parts:
            return [Statement(_BACK, [{"tenant": event.tenant, "thread": event.thread, "time": event.time}])]
    return []


ARCHIVES = Projection("archives", 1, (thread_archives,), REMOVALS | ARCHIVING, project)
