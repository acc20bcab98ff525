"""P3 checkpoints: the conversation state per thread in LangGraph's tables, each turn stored once.

State is the turns after the last pruning. A checkpoint row holds a few numbers (which turns, how many), a write
row names the turn by its sequence, and the text itself stands in `messages` alone: the cost of a turn does not
grow with the thread, where LangGraph's saver writes the whole list again (A 1.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB

from turnlog.events.contracts import HistoryPruned, Recorded
from turnlog.projectors.changes import Change, DeleteThread, Insert, Row
from turnlog.projectors.projection import REMOVALS, Projection
from turnlog.projectors.tables import metadata
from turnlog.projectors.writer import Connection

TYPE = "turnlog.seq"
MESSAGES_CHANNEL, PRUNED_CHANNEL = "messages", "pruned_through"


def _key_columns() -> list[sa.Column[str]]:
    return [
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("checkpoint_ns", sa.Text, primary_key=True, server_default=""),
    ]


checkpoints = sa.Table(
    "checkpoints",
    metadata,
    *_key_columns(),
    sa.Column("checkpoint_id", sa.Text, primary_key=True, comment="the turn's sequence, zero-padded: sorts in order"),
    sa.Column("parent_checkpoint_id", sa.Text),
    sa.Column("type", sa.Text),
    sa.Column("checkpoint", JSONB, nullable=False),
    sa.Column("metadata", JSONB, nullable=False),
)
checkpoint_blobs = sa.Table(
    "checkpoint_blobs",
    metadata,
    *_key_columns(),
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("blob", sa.LargeBinary),
)
checkpoint_writes = sa.Table(
    "checkpoint_writes",
    metadata,
    *_key_columns(),
    sa.Column("checkpoint_id", sa.Text, primary_key=True),
    sa.Column("task_id", sa.Text, primary_key=True, comment="id of the event that was written"),
    sa.Column("idx", sa.Integer, primary_key=True),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("type", sa.Text),
    sa.Column("blob", sa.LargeBinary, nullable=False),
    sa.Column("task_path", sa.Text, nullable=False),
)
TABLES = (checkpoints, checkpoint_blobs, checkpoint_writes)
_CHECKPOINT = tuple(column.name for column in checkpoints.columns)
_BLOB = tuple(column.name for column in checkpoint_blobs.columns)
_WRITE = tuple(column.name for column in checkpoint_writes.columns)


def checkpoint_id(seq: int) -> str:
    return f"{seq:020d}"


def project(batch: Sequence[Recorded]) -> list[Change]:
    first = batch[0].event
    if first.type in REMOVALS:
        return [DeleteThread(TABLES, first.tenant, first.thread)]
    pruned = [recorded for recorded in batch if isinstance(recorded.event.data, HistoryPruned)]
    return [
        Insert(checkpoints, _CHECKPOINT, [_checkpoint(recorded) for recorded in batch]),
        Insert(checkpoint_blobs, _BLOB, [_blob(recorded) for recorded in pruned]),
        Insert(checkpoint_writes, _WRITE, [_write(recorded) for recorded in batch]),
    ]


def _checkpoint(recorded: Recorded) -> Row:
    event, at = recorded.event, checkpoint_id(recorded.seq)
    channel = PRUNED_CHANNEL if isinstance(event.data, HistoryPruned) else MESSAGES_CHANNEL
    state = {"v": 4, "id": at, "ts": event.time, "channel_versions": {channel: at}, "versions_seen": {}}
    about = {"source": "update", "event_id": event.id, "writes": channel}
    return (event.tenant, event.thread, "", at, None, None, to_json(state).decode(), to_json(about).decode())


def _blob(recorded: Recorded) -> Row:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, HistoryPruned)
    return (
        event.tenant,
        event.thread,
        "",
        PRUNED_CHANNEL,
        checkpoint_id(recorded.seq),
        TYPE,
        str(data.through_seq).encode(),
    )


def _write(recorded: Recorded) -> Row:
    event, at = recorded.event, checkpoint_id(recorded.seq)
    pruned = isinstance(event.data, HistoryPruned)
    through = event.data.through_seq if isinstance(event.data, HistoryPruned) else recorded.seq
    channel = PRUNED_CHANNEL if pruned else MESSAGES_CHANNEL
    return (event.tenant, event.thread, "", at, str(event.id), 0, channel, TYPE, str(through).encode(), "")


CHECKPOINTS = Projection(
    "checkpoints", 1, TABLES, REMOVALS | {"turn_recorded", "history_pruned"}, project, insert_only=True
)


@dataclass(frozen=True, slots=True)
class State:
    """The conversation state: turns after pruned_through up to last_seq, message_count of them."""

    pruned_through: int
    last_seq: int
    message_count: int


async def thread_state(conn: Connection, tenant: str, thread: str) -> State:
    """Counts by index alone; the turns themselves are messages.thread_messages(after_seq=pruned_through)."""
    rows = await conn.execute(
        "WITH p AS (SELECT coalesce(max(convert_from(blob, 'UTF8')::bigint), 0) AS seq FROM checkpoint_blobs "
        "WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND checkpoint_ns = '' AND channel = 'pruned_through') "
        "SELECT p.seq, coalesce(max(w.checkpoint_id), '0')::bigint, count(w.checkpoint_id) FROM p "
        "LEFT JOIN checkpoint_writes w ON w.tenant = %(tenant)s AND w.thread_id = %(thread)s "
        "AND w.checkpoint_ns = '' AND w.channel = 'messages' AND w.checkpoint_id > lpad(p.seq::text, 20, '0') "
        "GROUP BY p.seq",
        {"tenant": tenant, "thread": thread},
    )
    found = await rows.fetchone()
    assert found is not None
    return State(int(found[0]), int(found[1]), int(found[2]))


async def pruned_through(conn: Connection, tenant: str, thread: str) -> int:
    """The sequence up to which turns left the conversation state; 0 when none did."""
    rows = await conn.execute(
        "SELECT coalesce(max(convert_from(blob, 'UTF8')::bigint), 0) FROM checkpoint_blobs WHERE tenant = %s "
        "AND thread_id = %s AND checkpoint_ns = '' AND channel = 'pruned_through'",
        (tenant, thread),
    )
    found = await rows.fetchone()
    return int(found[0]) if found else 0
