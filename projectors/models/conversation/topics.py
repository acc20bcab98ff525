"""memory_topics: the topics of a thread with their number of mentions and the time of the last one."""

from collections.abc import Sequence

import sqlalchemy as sa

from turnlog.events.contracts import REMOVALS, Recorded, ThreadForked, TopicsTagged
from turnlog.projectors.engine.changes import Change, Row, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz
from turnlog.projectors.engine.writer import Connection

memory_topics = thread_table(
    "memory_topics",
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("mention_count", sa.Integer, nullable=False),
    sa.Column("last_seen_at", timestamptz(), nullable=False),
)
memory_tagged = thread_table(
    "memory_tagged",
    sa.Column("through_seq", sa.BigInteger, nullable=False, comment="last sequence that was searched for topics"),
)
TABLES = (memory_topics, memory_tagged)
COLUMNS = tuple(column.name for column in memory_topics.columns)
_TAGGED = tuple(column.name for column in memory_tagged.columns)
_THROUGH = (("through_seq", "greatest(t.through_seq, excluded.through_seq)"),)
_UPDATE = (
    ("mention_count", "t.mention_count + excluded.mention_count"),
    ("last_seen_at", "greatest(t.last_seen_at, excluded.last_seen_at)"),
)


def project(batch: Sequence[Recorded]) -> list[Change]:
    folded: dict[tuple[str, str, str], Row] = {}
    for recorded in batch:
        event, data = recorded.event, recorded.event.data
        assert isinstance(data, TopicsTagged | ThreadForked)
        for topic, mentions in data.topics.items():
            row: Row = (event.tenant, event.thread, topic, mentions, event.time)
            key = (event.tenant, event.thread, topic)
            known = folded.get(key)
            folded[key] = row if known is None else (*known[:3], known[3] + row[3], max(known[4], row[4]))
    return [
        Upsert(memory_topics, COLUMNS, list(folded.values()), _UPDATE),
        Upsert(memory_tagged, _TAGGED, _spans(batch), _THROUGH),
    ]


def _spans(batch: Sequence[Recorded]) -> list[Row]:
    through: dict[tuple[str, str], int] = {}
    for event in (recorded.event for recorded in batch):
        place = (event.tenant, event.thread)
        assert isinstance(event.data, TopicsTagged | ThreadForked)
        through[place] = max(
            through.get(place, 0),
            event.data.tagged_through if isinstance(event.data, ThreadForked) else event.data.derivation.through_seq,
        )
    return [(*place, seq) for place, seq in through.items()]


TOPICS = Projection("topics", 1, TABLES, REMOVALS | {"topics_tagged", "thread_forked"}, project)


async def tagged_through(conn: Connection, tenant: str, thread: str) -> int:
    """Returns the last sequence that was tagged with topics; 0 if none was."""
    rows = await conn.execute(
        "SELECT coalesce(max(through_seq), 0) FROM memory_tagged WHERE tenant = %s AND thread_id = %s",
        (tenant, thread),
    )
    row = await rows.fetchone()
    return int(row[0]) if row else 0
