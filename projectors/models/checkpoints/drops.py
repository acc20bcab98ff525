"""checkpoints_dropped as SQL: what goes with a checkpoint is only known from the rows that stay."""

from collections.abc import Sequence

from turnlog.events.contracts import CheckpointsDropped, Recorded
from turnlog.projectors.engine.changes import Change, Statement

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
