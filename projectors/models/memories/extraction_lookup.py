"""Reads what extraction needs: a user's turns in a conversation, and users whose turns no model has read yet."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from uuid import UUID

from psycopg.rows import class_row

from turnlog.events.contracts import ERASED
from turnlog.events.local_time import local, with_offset
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message

# A thread of several people keeps empty turns of an erased person; there is nothing to extract from them.
_SAYS_SOMETHING = f"content <> '\"{ERASED}\"'"

# Skips images and reads only the beginning of each text, because a turn may be several megabytes long.
_CUT = """CASE WHEN jsonb_typeof(content) = 'string' THEN to_jsonb(left(content #>> '{}', %(chars)s))
ELSE coalesce((SELECT jsonb_agg(CASE WHEN jsonb_typeof(block -> part) = 'string'
    THEN jsonb_set(block, ARRAY[part], to_jsonb(left(block ->> part, %(chars)s))) ELSE block END ORDER BY number)
  FROM jsonb_array_elements(content) WITH ORDINALITY AS blocks (block, number)
  JOIN (VALUES ('text', 'text'), ('tool_result', 'content')) AS kinds (kind, part) ON block ->> 'type' = kind), '[]')
END"""

_TURNS = f"""
SELECT seq, event_id, role, {_CUT}, time, name, origin, utc_offset FROM messages
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND user_id = %(user)s AND role = ANY(%(roles)s)
AND seq > %(after)s AND {_SAYS_SOMETHING} ORDER BY seq LIMIT %(limit)s"""

_USERS = """
SELECT DISTINCT user_id FROM messages
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND seq BETWEEN %(first)s AND %(last)s
AND role = ANY(%(roles)s) AND user_id IS NOT NULL ORDER BY user_id"""

_SPEAKERS = """
SELECT (SELECT min(name) < max(name) FROM messages WHERE tenant = %(tenant)s AND thread_id = %(thread)s
    AND user_id = %(user)s AND role = 'user' AND name IS NOT NULL),
  (SELECT assistant_message_count = 0 FROM thread_activity WHERE tenant = %(tenant)s AND thread_id = %(thread)s)"""

# Only the progress in users' own memory threads counts, not that in trial derivations. Each user of a conversation has
# a separate progress.
# CASE avoids reading the content of turns that were already extracted from.
_BEHIND = f"""
WITH seen AS MATERIALIZED (SELECT tenant, conversation, user_id, max(through_seq) AS through FROM memory_extractions
  WHERE stage = 'llm' AND thread_id LIKE 'memories/%%' GROUP BY tenant, conversation, user_id)
SELECT DISTINCT m.tenant, m.user_id, m.thread_id FROM messages m
LEFT JOIN seen s ON s.tenant = m.tenant AND s.conversation = m.thread_id AND s.user_id = m.user_id
WHERE m.role = ANY(%(roles)s) AND m.user_id IS NOT NULL
AND CASE WHEN m.seq > coalesce(s.through, 0) THEN m.{_SAYS_SOMETHING} ELSE false END
LIMIT %(limit)s"""

_UNREAD = """
SELECT count(*) FROM messages m LEFT JOIN memory_extractions e
ON e.tenant = m.tenant AND e.thread_id = %(memory_thread)s AND e.conversation = m.thread_id AND e.stage = 'rules'
WHERE m.tenant = %(tenant)s AND m.user_id = %(user)s AND m.role = ANY(%(roles)s)
AND m.seq > greatest(%(after)s, coalesce(e.through_seq, 0))"""

_CONVERSATIONS = """
SELECT DISTINCT thread_id FROM messages WHERE tenant = %(tenant)s AND user_id = %(user)s AND role = ANY(%(roles)s)
ORDER BY thread_id"""


async def user_turns(
    conn: Connection,
    tenant: str,
    thread: str,
    user: str,
    roles: Sequence[str],
    zone: tzinfo,
    after: int,
    limit: int,
    chars: int,
) -> list[Message]:
    """Returns the user's own turns of these roles after a sequence, oldest first, without a fork's shared past.

    The turns contain no images and only the first `chars` characters of each text. zone: the time zone for times that
    were sent in UTC.
    """
    whose = {"tenant": tenant, "thread": thread, "user": user, "roles": list(roles)}
    params = {**whose, "after": after, "limit": limit, "chars": chars}
    rows = await conn.execute(_TURNS.encode(), params)
    return [
        Message(seq, event_id, role, content, local(with_offset(time, offset), zone), name, user=user, origin=origin)
        for seq, event_id, role, content, time, name, origin, offset in await rows.fetchall()
    ]


async def users_between(
    conn: Connection, tenant: str, thread: str, roles: Sequence[str], first: int = 0, last: int = 2**62
) -> list[str]:
    """Returns the users who have turns of these roles in the thread between two sequences, both included."""
    params = {"tenant": tenant, "thread": thread, "first": first, "last": last, "roles": list(roles)}
    rows = await conn.execute(_USERS, params)
    return [user for (user,) in await rows.fetchall()]


async def is_among_people(conn: Connection, tenant: str, thread: str, user: str) -> bool:
    """Returns whether several speakers share this user id and no turn is an assistant's. It reads no text of turns."""
    rows = await conn.execute(_SPEAKERS, {"tenant": tenant, "thread": thread, "user": user})
    row = await rows.fetchone()
    return row == (True, True)


async def behind(conn: Connection, roles: Sequence[str], limit: int = 1_000) -> list[tuple[str, str, str]]:
    """Returns (tenant, user, thread) of conversations with turns of these roles that no model has read. It scans every
    message."""
    rows = await conn.execute(_BEHIND.encode(), {"roles": list(roles), "limit": limit})
    return [(tenant, user, thread) for tenant, user, thread in await rows.fetchall()]


async def unread_turns(conn: Connection, tenant: str, user: str, roles: Sequence[str], after: int) -> int:
    """Returns how many of the user's turns after a sequence the extraction rules have not read."""
    params = {"tenant": tenant, "user": user, "memory_thread": memory_thread(user), "roles": list(roles)}
    row = await (await conn.execute(_UNREAD, {**params, "after": after})).fetchone()
    return int(row[0]) if row else 0


async def conversations_of(conn: Connection, tenant: str, user: str, roles: Sequence[str]) -> list[str]:
    """Returns the threads in which the user has turns of these roles."""
    rows = await conn.execute(_CONVERSATIONS, {"tenant": tenant, "user": user, "roles": list(roles)})
    return [thread for (thread,) in await rows.fetchall()]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one stage of the extraction has read a conversation. error: the error of the last run, None if it
    succeeded."""

    through_seq: int
    extractor: str
    found: int
    stored: int
    error: str | None
    extracted_at: datetime


async def extraction_progress(
    conn: Connection, tenant: str, thread: str, conversation: str, stage: str
) -> Progress | None:
    cursor = conn.cursor(row_factory=class_row(Progress))
    await cursor.execute(
        "SELECT through_seq, extractor, found, stored, error, extracted_at FROM memory_extractions "
        "WHERE tenant = %s AND thread_id = %s AND conversation = %s AND stage = %s",
        (tenant, thread, conversation, stage),
    )
    return await cursor.fetchone()


async def turns_of_forgotten(conn: Connection, tenant: str, thread: str, event_ids: Collection[UUID]) -> set[UUID]:
    """Returns which of these turns are sources of forgotten memories."""
    rows = await conn.execute(
        "SELECT DISTINCT s ->> 'event_id' FROM memories m, jsonb_array_elements(m.sources) s WHERE m.tenant = %s "
        "AND m.thread_id = %s AND m.status = 'forgotten' AND s ->> 'event_id' = ANY(%s::text[])",
        (tenant, thread, [str(id_) for id_ in event_ids]),
    )
    return {UUID(event_id) for (event_id,) in await rows.fetchall()}


async def memories_of_turn_before(
    conn: Connection, tenant: str, thread: str, conversation: str, user: str, seq: int
) -> list[tuple[UUID, UUID | None]]:
    """Returns valid memories whose only source is the user's last turn before a sequence of the conversation, each with
    the id of the memory that it replaced, or None."""
    rows = await conn.execute(
        "WITH said AS (SELECT event_id::text AS id FROM messages WHERE tenant = %(tenant)s "
        "AND thread_id = %(conversation)s AND user_id = %(user)s AND role = 'user' AND origin = 'person' "
        "AND seq < %(seq)s ORDER BY seq DESC LIMIT 1) "
        "SELECT m.id, (SELECT r.id FROM memories r WHERE r.tenant = m.tenant AND r.thread_id = m.thread_id "
        "AND r.replaced_by = m.id AND r.status = 'closed' AND r.closed_reason = 'superseded' "
        "AND (r.expires_at IS NULL OR r.expires_at > now()) ORDER BY r.valid_from DESC LIMIT 1) "
        "FROM memories m, said WHERE m.tenant = %(tenant)s AND m.thread_id = %(thread)s "
        "AND m.status = 'valid' AND m.sources <> '[]' AND NOT EXISTS "
        "(SELECT FROM jsonb_array_elements(m.sources) s WHERE s ->> 'event_id' <> said.id) ORDER BY m.seq, m.id",
        {"tenant": tenant, "thread": thread, "conversation": conversation, "user": user, "seq": seq},
    )
    return await rows.fetchall()
