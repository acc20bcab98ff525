"""P3 checkpoints: LangGraph's state per thread, each message stored once and referenced (A 1.1).

A list is rows of growth: a checkpoint says only how many items of which list it has, and a message's text is in
`messages` alone, so the cost of a turn does not grow with the thread. Turns of turnlog's own conversations need no
checkpoint: there the state is the turns after the last pruning.
"""

from collections.abc import Sequence
from itertools import groupby

import sqlalchemy as sa
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
from turnlog.projectors.engine.changes import Change, Row, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table
from turnlog.projectors.models.checkpoints import rows as checkpoint_rows

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
    sa.Column("first", sa.Integer, primary_key=True, comment="place of the first of these items in the list"),
    sa.Column("base_list", sa.Text, comment="the list this one begins like"),
    sa.Column("base_count", sa.Integer, nullable=False, comment="how many items of it"),
    sa.Column("items", sa.JSON, nullable=False, comment="text as it came: it is only ever read whole"),
)
TABLES = (checkpoints, checkpoint_blobs, checkpoint_writes, checkpoint_lists)
_UPDATED = ("checkpoint", "metadata", "run_id", "seq")
_REPLACED = ("channel", "type", "blob")


def project(batch: Sequence[Recorded]) -> list[Change]:
    changes: list[Change] = []
    for dropping, run in groupby(batch, lambda one: isinstance(one.event.data, CheckpointsDropped)):
        project_run = checkpoint_rows.dropped if dropping else _saved
        changes += project_run(list(run))
    return changes


def _saved(run: Sequence[Recorded]) -> list[Change]:
    saved = [one for one in run if isinstance(one.event.data, CheckpointSaved)]
    written = [one for one in run if isinstance(one.event.data, CheckpointWritesSaved)]
    pruned = [_pruned(one, through) for one in run if (through := _pruned_through(one.event.data))]
    new, replaced = checkpoint_rows.write_rows(written)
    return [
        Upsert(checkpoint_blobs, _columns(checkpoint_blobs), [*checkpoint_rows.blob_rows(saved), *pruned]),
        Upsert(checkpoint_lists, _columns(checkpoint_lists), checkpoint_rows.list_rows(saved)),
        Upsert(checkpoints, _columns(checkpoints), checkpoint_rows.checkpoint_rows(saved), _taken(_UPDATED)),
        Upsert(checkpoint_writes, _columns(checkpoint_writes), new),
        Upsert(checkpoint_writes, _columns(checkpoint_writes), replaced, _taken(_REPLACED)),
    ]


def _columns(table: sa.Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)


def _taken(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"excluded.{name}") for name in names)


def _pruned_through(data: EventData) -> int:
    """A fork begins as its parent was pruned then."""
    match data:
        case HistoryPruned(through_seq=through) | ThreadForked(pruned_through=through):
            return through
    return 0


def _pruned(recorded: Recorded, through: int) -> Row:
    event, at = recorded.event, f"{recorded.seq:020d}"
    return (event.tenant, event.thread, "", PRUNED_CHANNEL, at, TYPE, str(through).encode())


CHECKPOINTS = Projection(
    "checkpoints",
    2,
    TABLES,
    REMOVALS
    | {"history_pruned", "thread_forked", "checkpoint_saved", "checkpoint_writes_saved", "checkpoints_dropped"},
    project,
)
