"""Finds a fork's parents and the sequence at which it begins, because the past of a fork is read from its parents.

A fork's past turns and chunks remain rows of its parents. Reading a thread means reading its lineage: its own rows, and
the rows that each parent had when the fork began. messages.py projects the forks.
"""

from turnlog.projectors.engine.writer import Connection

# For queries that begin WITH RECURSIVE and have the parameters tenant and thread. `lineage` contains (thread_id,
# through_seq) of the thread and its parents. UNION ends cycles, which only a foreign producer can write.
LINEAGE = """
reach (thread_id, through_seq) AS (
  SELECT %(thread)s::text, 9223372036854775807
  UNION SELECT f.parent_id, least(f.at_seq, r.through_seq)
  FROM reach r JOIN thread_forks f ON f.tenant = %(tenant)s AND f.thread_id = r.thread_id),
lineage AS (SELECT thread_id, max(through_seq) AS through_seq FROM reach GROUP BY thread_id)"""


Parents = tuple[tuple[str, int], ...]


async def parents(conn: Connection, tenant: str, thread: str) -> Parents:
    """Returns (thread, last sequence that belongs to the fork) for each parent of a fork; () for a thread that is no
    fork."""
    rows = await conn.execute(
        f"WITH RECURSIVE {LINEAGE} SELECT thread_id, through_seq FROM lineage WHERE thread_id <> %(thread)s ORDER BY 2",
        {"tenant": tenant, "thread": thread},
    )
    return tuple((parent, int(through)) for parent, through in await rows.fetchall())


_RELATED = """
WITH RECURSIVE up (thread_id) AS (
  SELECT %(thread)s::text
  UNION SELECT f.parent_id FROM up JOIN thread_forks f ON f.tenant = %(tenant)s AND f.thread_id = up.thread_id),
family (thread_id) AS (
  SELECT thread_id FROM up
  UNION SELECT f.thread_id FROM family JOIN thread_forks f ON f.tenant = %(tenant)s AND f.parent_id = family.thread_id)
SELECT t.thread_id FROM family JOIN thread_activity t ON t.tenant = %(tenant)s AND t.thread_id = family.thread_id
WHERE t.user_id = %(user)s ORDER BY t.thread_id = %(thread)s DESC, t.last_active_at DESC LIMIT %(limit)s"""


async def related(conn: Connection, tenant: str, thread: str, user: str, limit: int) -> list[str]:
    """Returns the thread, then the user's threads that share a past with it, most recently active first."""
    rows = await conn.execute(_RELATED, {"tenant": tenant, "thread": thread, "user": user, "limit": limit})
    return [str(thread_id) for (thread_id,) in await rows.fetchall()]
