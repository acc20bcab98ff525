"""Rows of LangGraph's checkpoints out of their events, folded to one per key as Postgres needs them.

What goes with a dropped checkpoint is only known from the rows that stay, so checkpoints_dropped is SQL.
"""

from base64 import b64decode
from collections.abc import Sequence

from pydantic_core import to_json

from turnlog.events.contracts import CheckpointSaved, CheckpointsDropped, CheckpointWritesSaved, Recorded
from turnlog.events.sealing import is_erased
from turnlog.projectors.engine.changes import Change, Row, Statement


def checkpoint_rows(saved: Sequence[Recorded]) -> list[Row]:
    """A checkpoint that is saved again keeps its parent, as LangGraph's own saver has it.

    An erased one gives no row: the graph continues from the newest whole one.
    """
    rows: dict[Row, Row] = {}
    for one in saved:
        if is_erased(one.event):
            continue
        data = _saved(one)
        key = (one.event.tenant, one.event.thread, data.checkpoint_ns, data.checkpoint_id)
        parent = rows[key][4] if key in rows else data.parent_checkpoint_id
        rows[key] = (*key, parent, None, _json(data.checkpoint), _json(data.metadata), data.run_id, one.seq)
    return list(rows.values())


def blob_rows(saved: Sequence[Recorded]) -> list[Row]:
    """The first value of a channel's version stays."""
    rows: dict[Row, Row] = {}
    for one in saved:
        data = _saved(one)
        for blob in data.blobs:
            key = (one.event.tenant, one.event.thread, data.checkpoint_ns, blob.channel, blob.version)
            value = None if blob.data is None else _bytes(blob.data)
            rows.setdefault(key, (*key, blob.encoding, value))
    return list(rows.values())


def list_rows(saved: Sequence[Recorded]) -> list[Row]:
    rows: dict[Row, Row] = {}
    for one in saved:
        for grown in _saved(one).lists:
            key = (one.event.tenant, one.event.thread, grown.list_id, grown.first)
            rows.setdefault(key, (*key, grown.base_list, grown.base_count, _json(grown.items)))
    return list(rows.values())


def write_rows(written: Sequence[Recorded]) -> tuple[list[Row], list[Row]]:
    """(rows added only where there is none yet, rows that replace what is there). A key is in one of the two."""
    rows: dict[Row, Row] = {}
    replaced: set[Row] = set()
    for one in written:
        data = one.event.data
        assert isinstance(data, CheckpointWritesSaved)
        task = (one.event.tenant, one.event.thread, data.checkpoint_ns, data.checkpoint_id, data.task_id)
        for write in data.writes:
            key = (*task, write.idx)
            if data.replace or key not in rows:
                # The path stays the first one's, as LangGraph's own saver has it.
                path = rows[key][-1] if key in rows else data.task_path
                rows[key] = (*key, write.channel, write.encoding, _bytes(write.data), path)
            if data.replace:
                replaced.add(key)
    return [row for key, row in rows.items() if key not in replaced], [rows[key] for key in rows if key in replaced]


def _saved(one: Recorded) -> CheckpointSaved:
    data = one.event.data
    assert isinstance(data, CheckpointSaved)
    return data


def _json(value: object) -> str:
    return to_json(value).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


_HERE = "tenant = %(tenant)s AND thread_id = %(thread)s"
_WRITES = f"DELETE FROM checkpoint_writes WHERE {_HERE} AND checkpoint_ns = %(ns)s AND checkpoint_id = ANY(%(ids)s)"
# One snapshot for all parts of a statement: the kept are named by what they are not.
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
_LISTS = f"""
WITH RECURSIVE used(list_id) AS (
    SELECT convert_from(blob, 'UTF8')::jsonb ->> 'list' FROM checkpoint_blobs WHERE {_HERE} AND type = 'turnlog.list'
    UNION
    SELECT l.base_list FROM used JOIN checkpoint_lists l ON l.list_id = used.list_id
    WHERE l.tenant = %(tenant)s AND l.thread_id = %(thread)s AND l.base_list IS NOT NULL
)
DELETE FROM checkpoint_lists WHERE {_HERE} AND list_id NOT IN (SELECT list_id FROM used)
"""
_IN_ORDER = (_WRITES, _CHECKPOINTS, _PARENTS, _LISTS)


def dropped(run: Sequence[Recorded]) -> list[Change]:
    """A list goes when nothing that is kept has it or begins with it."""
    changes: list[Change] = []
    for one in run:
        data = one.event.data
        assert isinstance(data, CheckpointsDropped)
        named = {
            "tenant": one.event.tenant,
            "thread": one.event.thread,
            "ns": data.checkpoint_ns,
            "ids": list(data.checkpoint_ids),
        }
        changes += [Statement(sql, [named]) for sql in _IN_ORDER]
    return changes
