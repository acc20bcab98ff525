"""thread_archives: which conversations stand in files, and whether they are back (L4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from turnlog.events.contracts import ARCHIVING, REMOVALS, Recorded, ThreadArchived, ThreadRestored
from turnlog.projectors.engine.changes import Change, DeleteThread, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.forks import LINEAGE
from turnlog.projectors.models.memories.tables import thread_archives

# A conversation that somebody came back to stays for as long again. Left out is what others refer to by its turns: the
# parents of forks, the checkpoints of LangGraph, a session's segment; and what a projection has stopped at.
_COLD = """
SELECT t.tenant, t.thread_id, t.user_id, t.last_seq, t.message_count, t.last_active_at, a.path
FROM thread_activity t LEFT JOIN thread_archives a ON a.tenant = t.tenant AND a.thread_id = t.thread_id
WHERE t.last_active_at < %(before)s AND t.message_count > 0
AND (t.tenant, t.thread_id) > (%(tenant)s::text, %(thread)s::text)
AND (a.path IS NULL OR a.restored_at < %(before)s)
AND NOT EXISTS (SELECT FROM thread_forks f WHERE f.tenant = t.tenant AND f.parent_id = t.thread_id)
AND NOT EXISTS (SELECT FROM checkpoints c WHERE c.tenant = t.tenant AND c.thread_id = t.thread_id)
AND NOT EXISTS (SELECT FROM sessions s WHERE s.tenant = t.tenant AND s.thread_id = t.thread_id)
ORDER BY t.tenant, t.thread_id LIMIT %(limit)s"""

_STOPPED = "SELECT DISTINCT thread_token FROM dead_letters WHERE build = 'live' AND tenant = %s"

_ARCHIVED = f"""
WITH RECURSIVE {LINEAGE}
SELECT a.thread_id FROM lineage l JOIN thread_archives a ON a.tenant = %(tenant)s AND a.thread_id = l.thread_id
WHERE a.restored_at IS NULL ORDER BY a.thread_id"""

_ALL_ARCHIVED = """
SELECT thread_id FROM thread_archives
WHERE tenant = %(tenant)s AND restored_at IS NULL AND (%(user)s::text IS NULL OR user_id = %(user)s)
ORDER BY thread_id"""


@dataclass(frozen=True, slots=True)
class Cold:
    """A conversation that may be archived. last_seq: of its last turn as the read model knows it. path: of its file
    from another time, when it was restored since."""

    tenant: str
    thread: str
    user: str | None
    last_seq: int
    message_count: int
    last_active_at: datetime
    path: str | None = None


async def cold_threads(conn: Connection, before: datetime, after: Cold | None, limit: int) -> list[Cold]:
    """Conversations without a turn since `before`, of all tenants, in order of tenant and thread behind `after`."""
    at = (after.tenant, after.thread) if after else ("", "")
    params = {"before": before, "tenant": at[0], "thread": at[1], "limit": limit}
    rows = await conn.execute(_COLD, params)
    return [Cold(*row) for row in await rows.fetchall()]


async def stopped_tokens(conn: Connection, tenant: str) -> set[str]:
    """Tokens of threads with an event that some projection could not apply."""
    rows = await conn.execute(_STOPPED, (tenant,))
    return {str(token) for (token,) in await rows.fetchall()}


async def archived_lineage(conn: Connection, tenant: str, thread: str) -> list[str]:
    """Of the thread and those it is a fork of, the ones in the archive; [] for most."""
    rows = await conn.execute(_ARCHIVED, {"tenant": tenant, "thread": thread})
    return [str(found) for (found,) in await rows.fetchall()]


async def archived_threads(conn: Connection, tenant: str, user: str | None = None) -> list[str]:
    """All of a tenant, or of a user, that are in the archive."""
    rows = await conn.execute(_ALL_ARCHIVED, {"tenant": tenant, "user": user})
    return [str(found) for (found,) in await rows.fetchall()]


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
