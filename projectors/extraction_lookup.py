"""What the extraction reads (M2): a user's turns in a conversation, and who has turns that no model has looked at."""

from collections.abc import Sequence

from turnlog.projectors.message import Message
from turnlog.projectors.writer import Connection

_TURNS = """
SELECT seq, event_id, role, content, time, name FROM messages
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND user_id = %(user)s AND role = ANY(%(roles)s)
AND seq > %(after)s ORDER BY seq LIMIT %(limit)s"""

_USERS = """
SELECT DISTINCT user_id FROM messages
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND seq BETWEEN %(first)s AND %(last)s AND role = 'user'
AND user_id IS NOT NULL ORDER BY user_id"""

_SPEAKERS = """
SELECT count(DISTINCT name) FILTER (WHERE role = 'user' AND user_id = %(user)s) > 1,
  count(*) FILTER (WHERE role = 'assistant') = 0
FROM messages WHERE tenant = %(tenant)s AND thread_id = %(thread)s"""

# A shadow's progress is no progress: its memory threads begin otherwise.
_BEHIND = """
SELECT DISTINCT t.tenant, m.user_id, t.thread_id FROM thread_activity t CROSS JOIN LATERAL (
  SELECT user_id, seq FROM messages
  WHERE tenant = t.tenant AND thread_id = t.thread_id AND role = 'user' AND user_id IS NOT NULL
  AND seq > coalesce((SELECT min(e.through_seq) FROM memory_extractions e WHERE e.tenant = t.tenant
    AND e.conversation = t.thread_id AND e.stage = 'llm' AND e.thread_id LIKE 'memories/%%'), 0)) m
WHERE t.user_message_count > 0 AND m.seq > coalesce((SELECT e.through_seq FROM memory_extractions e
  WHERE e.tenant = t.tenant AND e.conversation = t.thread_id AND e.stage = 'llm' AND e.user_id = m.user_id
  AND e.thread_id LIKE 'memories/%%'), 0)
LIMIT %(limit)s"""

_CONVERSATIONS = """
SELECT DISTINCT thread_id FROM messages WHERE tenant = %(tenant)s AND user_id = %(user)s AND role = 'user'
ORDER BY thread_id"""


async def user_turns(
    conn: Connection, tenant: str, thread: str, user: str, roles: Sequence[str], after: int, limit: int
) -> list[Message]:
    """The user's own turns of these roles after a sequence, oldest first; none of a fork's shared past."""
    params = {"tenant": tenant, "thread": thread, "user": user, "roles": list(roles), "after": after, "limit": limit}
    rows = await conn.execute(_TURNS, params)
    return [
        Message(seq, event_id, role, content, time, name, user=user)
        for seq, event_id, role, content, time, name in await rows.fetchall()
    ]


async def users_between(conn: Connection, tenant: str, thread: str, first: int, last: int) -> list[str]:
    """The users who said something in the thread from one sequence to another."""
    rows = await conn.execute(_USERS, {"tenant": tenant, "thread": thread, "first": first, "last": last})
    return [user for (user,) in await rows.fetchall()]


async def is_among_people(conn: Connection, tenant: str, thread: str, user: str) -> bool:
    """Whether several speakers stand under this user and nobody is the assistant."""
    rows = await conn.execute(_SPEAKERS, {"tenant": tenant, "thread": thread, "user": user})
    found = await rows.fetchone()
    return found is not None and bool(found[0] and found[1])


async def behind(conn: Connection, limit: int = 1_000) -> list[tuple[str, str, str]]:
    """(tenant, user, thread) of conversations with turns that no model has looked at. Reads every thread."""
    rows = await conn.execute(_BEHIND, {"limit": limit})
    return [(tenant, user, thread) for tenant, user, thread in await rows.fetchall()]


async def conversations_of(conn: Connection, tenant: str, user: str) -> list[str]:
    rows = await conn.execute(_CONVERSATIONS, {"tenant": tenant, "user": user})
    return [thread for (thread,) in await rows.fetchall()]
