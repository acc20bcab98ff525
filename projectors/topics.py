"""P6 memory_topics: what a thread is about, how often and when last (A 1.2)."""

from collections.abc import Sequence

import sqlalchemy as sa

from turnlog.events.contracts import Recorded, TopicsTagged
from turnlog.projectors.changes import Change, DeleteThread, Row, Upsert
from turnlog.projectors.projection import REMOVALS, Projection
from turnlog.projectors.tables import metadata, timestamptz
from turnlog.projectors.writer import Connection

memory_topics = sa.Table(
    "memory_topics",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("thread_id", sa.Text, primary_key=True),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("mention_count", sa.Integer, nullable=False),
    sa.Column("through_seq", sa.BigInteger, nullable=False, comment="last sequence that was tagged"),
    sa.Column("last_seen_at", timestamptz(), nullable=False),
)
COLUMNS = tuple(column.name for column in memory_topics.columns)
_UPDATE = (
    ("mention_count", "t.mention_count + excluded.mention_count"),
    ("through_seq", "greatest(t.through_seq, excluded.through_seq)"),
    ("last_seen_at", "greatest(t.last_seen_at, excluded.last_seen_at)"),
)


def project(batch: Sequence[Recorded]) -> list[Change]:
    first = batch[0].event
    if first.type in REMOVALS:
        return [DeleteThread((memory_topics,), first.tenant, first.thread)]
    folded: dict[tuple[str, str, str], Row] = {}
    for recorded in batch:
        for row in _rows(recorded):
            key = (row[0], row[1], row[2])
            known = folded.get(key)
            folded[key] = row if known is None else _add(known, row)
    return [Upsert(memory_topics, COLUMNS, list(folded.values()), _UPDATE)]


def _rows(recorded: Recorded) -> list[Row]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, TopicsTagged)
    through = data.derivation.through_seq
    return [(event.tenant, event.thread, topic, n, through, event.time) for topic, n in data.topics.items()]


def _add(known: Row, row: Row) -> Row:
    return (*known[:3], known[3] + row[3], max(known[4], row[4]), max(known[5], row[5]))


TOPICS = Projection("topics", 1, (memory_topics,), REMOVALS | {"topics_tagged"}, project)


async def thread_topics(conn: Connection, tenant: str, thread: str, limit: int = 20) -> list[str]:
    """The topics of a thread, most mentioned first."""
    rows = await conn.execute(
        "SELECT topic FROM memory_topics WHERE tenant = %s AND thread_id = %s "
        "ORDER BY mention_count DESC, last_seen_at DESC, topic LIMIT %s",
        (tenant, thread, limit),
    )
    return [topic for (topic,) in await rows.fetchall()]
