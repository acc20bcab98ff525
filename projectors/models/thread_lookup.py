"""All that a context needs to know of a thread but its turns, in one question to one snapshot of the read models."""

from dataclasses import dataclass

from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.forks import LINEAGE

TOPICS = 20

_OVERVIEW = f"""
WITH RECURSIVE {LINEAGE},
pruned AS (
  SELECT coalesce(max(convert_from(blob, 'UTF8')::bigint), 0) AS seq FROM checkpoint_blobs
  WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND checkpoint_ns = '' AND channel = 'pruned_through'
  AND type = 'turnlog.seq'),
turns AS (
  SELECT sum(m.count)::bigint AS count, coalesce(max(m.last), 0) AS last FROM lineage l CROSS JOIN LATERAL (
    SELECT count(*) AS count, max(seq) AS last FROM messages
    WHERE tenant = %(tenant)s AND thread_id = l.thread_id AND seq > (SELECT seq FROM pruned)
    AND seq <= l.through_seq) m)
SELECT pruned.seq, turns.count, turns.last, s.summary, s.seq, ARRAY(
  SELECT topic FROM memory_topics WHERE tenant = %(tenant)s AND thread_id = %(thread)s
  ORDER BY mention_count DESC, last_seen_at DESC, topic COLLATE "C" LIMIT %(topics)s)
FROM pruned CROSS JOIN turns
LEFT JOIN conversation_summaries s ON s.tenant = %(tenant)s AND s.thread_id = %(thread)s"""


@dataclass(frozen=True, slots=True)
class Overview:
    """The conversation state is the `count` turns after pruned_through, the last of them at last_seq (0: none).

    summary_seq: of the event that wrote the summary; topics: most mentioned first.
    """

    pruned_through: int
    count: int
    last_seq: int
    summary: str | None
    summary_seq: int | None
    topics: list[str]


async def thread_overview(conn: Connection, tenant: str, thread: str) -> Overview:
    rows = await conn.execute(_OVERVIEW, {"tenant": tenant, "thread": thread, "topics": TOPICS})
    found = await rows.fetchone()
    assert found is not None
    return Overview(*found)
