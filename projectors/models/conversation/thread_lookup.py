"""Looks up conversations: the list, the archive, and the data of a thread that a context needs besides its turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import class_row, dict_row

from turnlog.events.contracts import ParticipantRole
from turnlog.events.subjects import thread_token
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.forks import LINEAGE, Parents

TOPICS = 20

# Selects the pruning that reaches furthest, by the index checkpoint_blobs_pruned.
_PRUNED = """
SELECT coalesce((SELECT convert_from(blob, 'UTF8')::bigint FROM checkpoint_blobs
  WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND checkpoint_ns = '' AND channel = 'pruned_through'
  AND type = 'turnlog.seq' ORDER BY length(blob) DESC, blob DESC LIMIT 1), 0) AS seq"""

_OVERVIEW = f"""
WITH RECURSIVE {LINEAGE},
pruned AS ({_PRUNED}),
turns AS (
  SELECT sum(m.count)::bigint AS count, coalesce(max(m.last), 0) AS last FROM lineage l CROSS JOIN LATERAL (
    SELECT count(*) AS count, max(seq) AS last FROM messages
    WHERE tenant = %(tenant)s AND thread_id = l.thread_id AND seq > (SELECT seq FROM pruned)
    AND seq <= l.through_seq) m)
SELECT pruned.seq, turns.count, turns.last, s.summary, s.seq, ARRAY(
  SELECT topic FROM memory_topics WHERE tenant = %(tenant)s AND thread_id = %(thread)s
  ORDER BY mention_count DESC, last_seen_at DESC, topic COLLATE "C" LIMIT %(topics)s),
  (SELECT jsonb_agg(jsonb_build_array(thread_id, through_seq) ORDER BY through_seq) FROM lineage
   WHERE thread_id <> %(thread)s)
FROM pruned CROSS JOIN turns
LEFT JOIN conversation_summaries s ON s.tenant = %(tenant)s AND s.thread_id = %(thread)s"""


@dataclass(frozen=True, slots=True)
class Overview:
    """The conversation state: the `count` turns after pruned_through, the last of them at last_seq (0: there are none).

    summary_seq: the sequence of the event that wrote the summary. topics: the most mentioned first. parents: the result
    of forks.parents.
    """

    pruned_through: int
    count: int
    last_seq: int
    summary: str | None
    summary_seq: int | None
    topics: list[str]
    parents: Parents = ()


async def thread_overview(conn: Connection, tenant: str, thread: str) -> Overview:
    rows = await conn.execute(_OVERVIEW, {"tenant": tenant, "thread": thread, "topics": TOPICS})
    row = await rows.fetchone()
    assert row is not None
    values = list(row)
    values[-1] = tuple((parent, through) for parent, through in values[-1] or ())
    return Overview(*values)


async def pruned_through(conn: Connection, tenant: str, thread: str) -> int:
    """Returns the sequence up to which turns were pruned from the conversation state; 0 if none were."""
    rows = await conn.execute(_PRUNED, {"tenant": tenant, "thread": thread})
    row = await rows.fetchone()
    return int(row[0]) if row else 0


# Two queries, because a query with OR could not use the indexes of the user's threads.
_OF_USER = (
    "t.user_id = %(user)s",
    "t.user_id IS DISTINCT FROM %(user)s AND t.thread_id IN (SELECT p.thread_id FROM thread_participants p "
    "WHERE p.tenant = %(tenant)s AND p.user_id = %(user)s AND p.agreed)",
)
_LISTED = """
SELECT t.thread_id, t.label, t.user_id, t.message_count, t.last_active_at, t.created_at, t.metadata, s.summary
FROM thread_activity t LEFT JOIN conversation_summaries s ON s.tenant = t.tenant AND s.thread_id = t.thread_id"""


async def list_threads(
    conn: Connection,
    tenant: str,
    user: str | None = None,
    limit: int = 100,
    after: tuple[datetime, str] | None = None,
) -> list[dict[str, Any]]:
    """Returns threads of a tenant, most recently active first, with the columns of _LISTED. user: returns only threads
    that the user owns or takes part in. after: the last activity and the id of the previous page's last thread.
    """
    cursor = conn.cursor(row_factory=dict_row)
    at, thread = after or (None, None)
    newest_first = "ORDER BY last_active_at DESC, thread_id LIMIT %(limit)s"
    pages = [
        f"({_LISTED} WHERE t.tenant = %(tenant)s AND {condition} "
        "AND (%(at)s::timestamptz IS NULL OR t.last_active_at < %(at)s "
        f"OR t.last_active_at = %(at)s AND t.thread_id > %(thread)s) {newest_first})"
        for condition in (("true",) if user is None else _OF_USER)
    ]
    query = f"{' UNION ALL '.join(pages)} {newest_first if len(pages) > 1 else ''}"
    params = {"tenant": tenant, "user": user, "limit": limit, "at": at, "thread": thread}
    await cursor.execute(query.encode(), params)
    return await cursor.fetchall()


async def one_thread(conn: Connection, tenant: str, thread: str) -> dict[str, Any] | None:
    """Returns the thread with the columns of list_threads, or None if there is no such thread."""
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(f"{_LISTED} WHERE t.tenant = %s AND t.thread_id = %s", (tenant, thread))
    return await cursor.fetchone()


async def thread_marks(
    conn: Connection, tenant: str, user: str | None, threads: Sequence[str]
) -> list[tuple[str, int, bool, str | None]]:
    """Returns (id, tokens used by models, whether an event is parked, label) for these threads of a user."""
    rows = await conn.execute(
        "SELECT t.thread_id, "
        "coalesce((SELECT sum(coalesce(m.tokens_in, 0) + coalesce(m.tokens_out, 0)) FROM messages m "
        "WHERE m.tenant = t.tenant AND m.thread_id = t.thread_id AND m.role = 'assistant'), 0)::bigint, "
        "EXISTS (SELECT FROM dead_letters d JOIN unnest(%(threads)s::text[], %(tokens)s::text[]) a (thread, token) "
        "ON a.token = d.thread_token WHERE a.thread = t.thread_id AND d.tenant = t.tenant AND d.build = 'live' "
        "AND d.status = 'parked'), t.label FROM thread_activity t "
        "WHERE t.tenant = %(tenant)s AND t.user_id = %(user)s AND t.thread_id = ANY(%(threads)s)",
        {"tenant": tenant, "user": user, "threads": list(threads), "tokens": [thread_token(each) for each in threads]},
    )
    return [(str(thread), int(tokens), bool(parked), label) for thread, tokens, parked, label in await rows.fetchall()]


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner of a thread and a user's role in it. owner: None if nobody owns the thread. role: None if the user has
    no access. position: the sequence that the projection had applied in the partition."""

    exists: bool
    owner: str | None
    role: ParticipantRole | None
    position: int


async def ownership_of(conn: Connection, tenant: str, thread: str, user: str, partition: int) -> Ownership:
    """Returns the owner of the thread and the user's role in it, from one snapshot."""
    rows = await conn.execute(
        "SELECT t.thread_id IS NOT NULL, t.user_id, CASE WHEN t.user_id = %(user)s THEN 'owner' ELSE p.role END, "
        "coalesce((SELECT position FROM projection_positions WHERE projection = 'thread_activity' AND build = 'live' "
        "AND partition = %(partition)s), 0) FROM (VALUES (true)) one "
        "LEFT JOIN thread_activity t ON t.tenant = %(tenant)s AND t.thread_id = %(thread)s "
        "LEFT JOIN thread_participants p ON p.tenant = t.tenant AND p.thread_id = t.thread_id "
        "AND p.user_id = %(user)s AND p.agreed AND p.role <> 'owner'",
        {"partition": partition, "tenant": tenant, "thread": thread, "user": user},
    )
    row = await rows.fetchone()
    assert row is not None
    return Ownership(*row)


@dataclass(frozen=True, slots=True)
class Participant:
    """A participant of a conversation. name: the name on the user's turns. agreed: False until the user accepts the
    invitation, which has no effect before."""

    user: str
    name: str
    role: ParticipantRole
    agreed: bool


async def participants_in(conn: Connection, tenant: str, thread: str) -> list[Participant]:
    """Returns the participants of a conversation, including invited users; the owner only if a name was set."""
    cursor = conn.cursor(row_factory=class_row(Participant))
    await cursor.execute(
        'SELECT user_id AS "user", name, role, agreed FROM thread_participants '
        "WHERE tenant = %s AND thread_id = %s ORDER BY user_id",
        (tenant, thread),
    )
    return await cursor.fetchall()


async def invitations_of(
    conn: Connection, tenant: str, user: str
) -> list[tuple[str, str | None, str, ParticipantRole]]:
    """Returns (thread, owner of the thread, name, role) for up to 1,000 invitations that the user has not accepted, by
    thread."""
    rows = await conn.execute(
        "SELECT p.thread_id, t.user_id, p.name, p.role FROM thread_participants p "
        "JOIN thread_activity t ON t.tenant = p.tenant AND t.thread_id = p.thread_id "
        "WHERE p.tenant = %s AND p.user_id = %s AND NOT p.agreed ORDER BY p.thread_id LIMIT 1000",
        (tenant, user),
    )
    return await rows.fetchall()


async def numbered_labels(conn: Connection, tenant: str, user: str | None) -> int:
    """Returns the highest number in a user's labels of the form "Conversation 3"; 0 if there is none."""
    rows = await conn.execute(
        "SELECT coalesce(max(substring(label FROM '^(?:Conversation|会话) ([0-9]{1,9})$')::int), 0) "
        f"FROM thread_activity WHERE tenant = %s AND user_id {'IS NULL' if user is None else '= %s'}",
        (tenant,) if user is None else (tenant, user),
    )
    row = await rows.fetchone()
    return int(row[0]) if row else 0


async def is_there(conn: Connection, tenant: str, thread: str) -> bool:
    rows = await conn.execute("SELECT FROM thread_activity WHERE tenant = %s AND thread_id = %s", (tenant, thread))
    return await rows.fetchone() is not None


# A restored conversation is kept for the full period again. Conversations whose turns are referred to (by forks,
# LangGraph's checkpoints or a session's segment) are left out.
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
    """A conversation that may be archived. last_seq: the sequence of its last event in the read model. path: the file
    of an earlier archiving, if the conversation was restored since."""

    tenant: str
    thread: str
    user: str | None
    last_seq: int
    message_count: int
    last_active_at: datetime
    path: str | None = None


async def cold_threads(conn: Connection, before: datetime, after: Cold | None, limit: int) -> list[Cold]:
    """Returns conversations of all tenants without activity since `before`, ordered by tenant and thread. after: the
    last conversation of the previous page."""
    at = (after.tenant, after.thread) if after else ("", "")
    params = {"before": before, "tenant": at[0], "thread": at[1], "limit": limit}
    rows = await conn.execute(_COLD, params)
    return [Cold(*row) for row in await rows.fetchall()]


async def stopped_tokens(conn: Connection, tenant: str) -> set[str]:
    """Returns the tokens of threads with an event that a projection could not apply."""
    rows = await conn.execute(_STOPPED, (tenant,))
    return {str(token) for (token,) in await rows.fetchall()}


async def archived_lineage(conn: Connection, tenant: str, thread: str) -> list[str]:
    """Returns which of the thread and its parents are archived."""
    rows = await conn.execute(_ARCHIVED, {"tenant": tenant, "thread": thread})
    return [str(thread_id) for (thread_id,) in await rows.fetchall()]


async def archived_threads(conn: Connection, tenant: str, user: str | None = None) -> list[str]:
    """Returns all archived threads of a tenant, or of a user."""
    rows = await conn.execute(_ALL_ARCHIVED, {"tenant": tenant, "user": user})
    return [str(thread_id) for (thread_id,) in await rows.fetchall()]
