"""checkpoints: LangGraph's state per thread; each message is stored once and referenced.

A list is stored as rows of added items. A checkpoint only names the list and the number of its items, and a message's
text is only in `messages`, so the cost of a turn does not grow with the thread. Turnlog's own conversations need no
checkpoints, because their state is the turns after the last pruning.
"""

from base64 import b64decode
from collections.abc import Sequence
from itertools import groupby

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB

from turnlog.events.contracts import (
    REMOVALS,
    CheckpointSaved,
    CheckpointsDropped,
    CheckpointWritesSaved,
    EventData,
    HistoryPruned,
    Recorded,
    ThreadForked,
)
from turnlog.events.sealing import is_erased
from turnlog.projectors.engine.changes import Change, Row, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table

TYPE = "turnlog.seq"
PRUNED_CHANNEL = "pruned_through"


def _namespace() -> sa.Column[str]:
    return sa.Column("checkpoint_ns", sa.Text, primary_key=True, server_default="")


checkpoints = thread_table(
    "checkpoints",
    _namespace(),
    sa.Column("checkpoint_id", sa.Text, primary_key=True),
    sa.Column("parent_checkpoint_id", sa.Text),
    sa.Column("type", sa.Text),
    sa.Column("checkpoint", JSONB, nullable=False),
    sa.Column("metadata", JSONB, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="sequence of the event that saved it"),
)
sa.Index(
    "checkpoints_of_run",
    checkpoints.c.tenant,
    checkpoints.c.run_id,
    postgresql_where=checkpoints.c.run_id.is_not(None),
)
checkpoint_blobs = thread_table(
    "checkpoint_blobs",
    _namespace(),
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("blob", sa.LargeBinary),
)
# Finds a thread's last pruning; there is one every twenty turns. The sequence is stored as decimal text, so numbers are
# compared by length first, then as text.
sa.Index(
    "checkpoint_blobs_pruned",
    checkpoint_blobs.c.tenant,
    checkpoint_blobs.c.thread_id,
    sa.func.length(checkpoint_blobs.c.blob),
    checkpoint_blobs.c.blob,
    postgresql_where=sa.text("channel = 'pruned_through' AND type = 'turnlog.seq' AND checkpoint_ns = ''"),
)
checkpoint_writes = thread_table(
    "checkpoint_writes",
    _namespace(),
    sa.Column("checkpoint_id", sa.Text, primary_key=True),
    sa.Column("task_id", sa.Text, primary_key=True),
    sa.Column("idx", sa.Integer, primary_key=True),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("type", sa.Text),
    sa.Column("blob", sa.LargeBinary, nullable=False),
    sa.Column("task_path", sa.Text, nullable=False),
)
checkpoint_lists = thread_table(
    "checkpoint_lists",
    sa.Column("list_id", sa.Text, primary_key=True),
    sa.Column("first", sa.Integer, primary_key=True, comment="index of the first of these items in the list"),
    sa.Column("base_list", sa.Text, comment="id of the list whose first items are also the first items of this list"),
    sa.Column("base_count", sa.Integer, nullable=False, comment="number of items that are the same in both lists"),
    sa.Column("items", sa.JSON, nullable=False, comment="JSON as it was received; it is always read as a whole"),
)
TABLES = (checkpoints, checkpoint_blobs, checkpoint_writes, checkpoint_lists)
_UPDATED = ("checkpoint", "metadata", "run_id", "seq")
_REPLACED = ("channel", "type", "blob")


def project(batch: Sequence[Recorded]) -> list[Change]:
    changes: list[Change] = []
    for dropping, run in groupby(batch, lambda recorded: isinstance(recorded.event.data, CheckpointsDropped)):
        project_run = dropped if dropping else _saved
        changes += project_run(list(run))
    return changes


def _saved(run: Sequence[Recorded]) -> list[Change]:
    saved = [recorded for recorded in run if isinstance(recorded.event.data, CheckpointSaved)]
    written = [recorded for recorded in run if isinstance(recorded.event.data, CheckpointWritesSaved)]
    pruned = [_pruned(recorded, through) for recorded in run if (through := _pruned_through(recorded.event.data))]
    new, replaced = write_rows(written)
    return [
        Upsert(checkpoint_blobs, _columns(checkpoint_blobs), [*blob_rows(saved), *pruned]),
        Upsert(checkpoint_lists, _columns(checkpoint_lists), list_rows(saved)),
        Upsert(checkpoints, _columns(checkpoints), checkpoint_rows(saved), _taken(_UPDATED)),
        Upsert(checkpoint_writes, _columns(checkpoint_writes), new),
        Upsert(checkpoint_writes, _columns(checkpoint_writes), replaced, _taken(_REPLACED)),
    ]


def _columns(table: sa.Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)


def _taken(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"excluded.{name}") for name in names)


def _pruned_through(data: EventData) -> int:
    """Returns the sequence up to which the event prunes the thread's turns, 0 if none; a fork takes over its parent's
    pruning."""
    match data:
        case HistoryPruned(through_seq=through) | ThreadForked(pruned_through=through):
            return through
    return 0


def _pruned(recorded: Recorded, through: int) -> Row:
    event, at = recorded.event, f"{recorded.seq:020d}"
    return (event.tenant, event.thread, "", PRUNED_CHANNEL, at, TYPE, str(through).encode())


def checkpoint_rows(saved: Sequence[Recorded]) -> list[Row]:
    """Returns the rows of saved checkpoints. A checkpoint that is saved again keeps its parent, as in LangGraph's own
    saver.

    An erased checkpoint has no row, so the graph continues from the newest checkpoint that is not erased.
    """
    rows: dict[Row, Row] = {}
    for recorded in saved:
        if is_erased(recorded.event):
            continue
        data = _checkpoint(recorded)
        key = (recorded.event.tenant, recorded.event.thread, data.checkpoint_ns, data.checkpoint_id)
        parent = rows[key][4] if key in rows else data.parent_checkpoint_id
        rows[key] = (*key, parent, None, _json(data.checkpoint), _json(data.metadata), data.run_id, recorded.seq)
    return list(rows.values())


def blob_rows(saved: Sequence[Recorded]) -> list[Row]:
    """Returns the rows of channels' values. The first value of each version of a channel is kept."""
    rows: dict[Row, Row] = {}
    for recorded in saved:
        data = _checkpoint(recorded)
        for blob in data.blobs:
            key = (recorded.event.tenant, recorded.event.thread, data.checkpoint_ns, blob.channel, blob.version)
            value = None if blob.data is None else _bytes(blob.data)
            rows.setdefault(key, (*key, blob.encoding, value))
    return list(rows.values())


def list_rows(saved: Sequence[Recorded]) -> list[Row]:
    rows: dict[Row, Row] = {}
    for recorded in saved:
        for grown in _checkpoint(recorded).lists:
            key = (recorded.event.tenant, recorded.event.thread, grown.list_id, grown.first)
            rows.setdefault(key, (*key, grown.base_list, grown.base_count, _json(grown.items)))
    return list(rows.values())


def write_rows(written: Sequence[Recorded]) -> tuple[list[Row], list[Row]]:
    """Returns (rows to add if missing, rows that replace existing rows); no key is in both."""
    rows: dict[Row, Row] = {}
    replaced: set[Row] = set()
    for recorded in written:
        data = recorded.event.data
        assert isinstance(data, CheckpointWritesSaved)
        task = (recorded.event.tenant, recorded.event.thread, data.checkpoint_ns, data.checkpoint_id, data.task_id)
        for write in data.writes:
            key = (*task, write.idx)
            if data.replace or key not in rows:
                # The first path is kept, as in LangGraph's own saver.
                path = rows[key][-1] if key in rows else data.task_path
                rows[key] = (*key, write.channel, write.encoding, _bytes(write.data), path)
            if data.replace:
                replaced.add(key)
    return [row for key, row in rows.items() if key not in replaced], [rows[key] for key in rows if key in replaced]


def _checkpoint(recorded: Recorded) -> CheckpointSaved:
    data = recorded.event.data
    assert isinstance(data, CheckpointSaved)
    return data


def _json(value: object) -> str:
    return to_json(value).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


# The rows to drop with a checkpoint depend on the rows that stay, so SQL selects them.
_HERE = "tenant = %(tenant)s AND thread_id = %(thread)s"
_WRITES = f"DELETE FROM checkpoint_writes WHERE {_HERE} AND checkpoint_ns = %(ns)s AND checkpoint_id = ANY(%(ids)s)"
# All parts of a statement see the same snapshot, so `used` must exclude the checkpoints that are being dropped.
_CHECKPOINTS = f"""
WITH gone AS (
    DELETE FROM checkpoints WHERE {_HERE} AND checkpoint_ns = %(ns)s AND checkpoint_id = ANY(%(ids)s)
    RETURNING checkpoint -> 'channel_versions' AS versions
), freed AS (
    SELECT DISTINCT v.key, v.value FROM gone, jsonb_each_text(gone.versions) v
), used AS (
    SELECT DISTINCT v.key, v.value FROM checkpoints, jsonb_each_text(checkpoint -> 'channel_versions') v
    WHERE {_HERE} AND checkpoint_ns = %(ns)s AND checkpoint_id <> ALL(%(ids)s)
)
DELETE FROM checkpoint_blobs b USING (SELECT * FROM freed EXCEPT SELECT * FROM used) f
WHERE b.tenant = %(tenant)s AND b.thread_id = %(thread)s AND b.checkpoint_ns = %(ns)s
AND b.channel = f.key AND b.version = f.value AND b.type <> 'turnlog.seq'
"""
_PARENTS = (
    f"UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE {_HERE} AND checkpoint_ns = %(ns)s "
    "AND parent_checkpoint_id = ANY(%(ids)s)"
)
# Steps from list to list by the key and reads only the first row of each list, which names its base, because long
# lists have very many rows.
_LISTS = f"""
WITH RECURSIVE named(list_id) AS (
    (SELECT list_id FROM checkpoint_lists WHERE {_HERE} ORDER BY list_id LIMIT 1)
    UNION ALL
    SELECT (SELECT l.list_id FROM checkpoint_lists l WHERE {_HERE} AND l.list_id > n.list_id ORDER BY l.list_id LIMIT 1)
    FROM named n WHERE n.list_id IS NOT NULL
), used(list_id) AS (
    SELECT convert_from(blob, 'UTF8')::jsonb ->> 'list' FROM checkpoint_blobs WHERE {_HERE} AND type = 'turnlog.list'
    UNION
    SELECT b.base_list FROM used CROSS JOIN LATERAL (
        SELECT l.base_list FROM checkpoint_lists l WHERE {_HERE} AND l.list_id = used.list_id ORDER BY l.first LIMIT 1
    ) b WHERE b.base_list IS NOT NULL
), gone AS (SELECT list_id FROM named WHERE list_id IS NOT NULL EXCEPT SELECT list_id FROM used)
DELETE FROM checkpoint_lists WHERE ctid = ANY(ARRAY(
    SELECT l.ctid FROM gone CROSS JOIN LATERAL (
        SELECT ctid FROM checkpoint_lists WHERE {_HERE} AND list_id = gone.list_id OFFSET 0
    ) l))
"""
_IN_ORDER = (_WRITES, _CHECKPOINTS, _PARENTS, _LISTS)


def dropped(run: Sequence[Recorded]) -> list[Change]:
    """Returns the changes that drop checkpoints. A list is dropped when no remaining checkpoint uses it, directly or as
    a base."""
    changes: list[Change] = []
    for recorded in run:
        data = recorded.event.data
        assert isinstance(data, CheckpointsDropped)
        named = {
            "tenant": recorded.event.tenant,
            "thread": recorded.event.thread,
            "ns": data.checkpoint_ns,
            "ids": list(data.checkpoint_ids),
        }
        changes += [Statement(sql, [named]) for sql in _IN_ORDER]
    return changes


CHECKPOINTS = Projection(
    "checkpoints",
    2,
    TABLES,
    REMOVALS
    | {"history_pruned", "thread_forked", "checkpoint_saved", "checkpoint_writes_saved", "checkpoints_dropped"},
    project,
)
