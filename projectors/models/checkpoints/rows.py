"""Rows of LangGraph's checkpoints out of their events, folded to one per key as Postgres needs them."""

from base64 import b64decode
from collections.abc import Sequence

from pydantic_core import to_json

from turnlog.events.contracts import CheckpointSaved, CheckpointWritesSaved, Recorded
from turnlog.events.sealing import is_erased
from turnlog.projectors.engine.changes import Row


def checkpoint_rows(saved: Sequence[Recorded]) -> list[Row]:
    """A checkpoint that is saved again keeps its parent, as LangGraph's own saver has it.

    One that was erased is no row: the graph goes on from the newest that is whole.
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
    """(rows that stay behind what is there, rows that take its place). A key stands in one of them."""
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
