"""Checkpoints with their values and writes, and the CheckpointTuple that LangGraph gets of them (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple, writes_sort_key
from langgraph.checkpoint.serde.types import TASKS
from pydantic_core import from_json

from turnlog.consumers.langgraph.interning import Interner
from turnlog.consumers.langgraph.items import Codec
from turnlog.consumers.langgraph.values import Value

ROOT = ""  # the namespace of the graph that is no subgraph
FIRST_WITHOUT_SENDS = 4  # format of checkpoints


class Written(NamedTuple):
    """One write of a task."""

    task_id: str
    idx: int
    task_path: str
    channel: str
    value: Value

    @property
    def order(self) -> tuple[str, str, int]:
        return writes_sort_key(self.task_path, self.task_id, self.idx)


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint. checkpoint, metadata: JSON text; values: (channel, version) → value, of those stored apart.

    is_old: of a format in which the pending sends are its parent's writes to TASKS, which are `sends`.
    """

    thread: str
    ns: str
    checkpoint_id: str
    parent_id: str | None
    checkpoint: str
    metadata: str
    values: Mapping[tuple[str, str], Value]
    is_old: bool = False
    writes: Sequence[Written] = ()
    sends: Sequence[Written] = ()


def config_of(thread: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def checkpoint_tuple(saved: Saved, codec: Codec, interner: Interner | None, next_version: Any) -> CheckpointTuple:
    """interner: told what is given out, when the caller may go on from it."""
    checkpoint: dict[str, Any] = from_json(saved.checkpoint)
    values = checkpoint.get("channel_values") or {}
    for channel, version in checkpoint["channel_versions"].items():
        value = saved.values.get((channel, str(version)))
        if value is not None:
            values[channel] = value.load(codec, interner)
    checkpoint["channel_values"] = values
    if saved.sends:
        _add_sends(checkpoint, [one.value.load(codec, interner) for one in _sorted(saved.sends)], next_version)
    return CheckpointTuple(
        config_of(saved.thread, saved.ns, saved.checkpoint_id),
        cast(Checkpoint, checkpoint),
        cast(CheckpointMetadata, from_json(saved.metadata)),
        config_of(saved.thread, saved.ns, saved.parent_id) if saved.parent_id else None,
        [(one.task_id, one.channel, one.value.load(codec, interner)) for one in _sorted(saved.writes)],
    )


def _sorted(writes: Iterable[Written]) -> list[Written]:
    return sorted(writes, key=lambda one: one.order)


def _add_sends(checkpoint: dict[str, Any], sends: list[Any], next_version: Any) -> None:
    versions = checkpoint["channel_versions"]
    checkpoint["channel_values"][TASKS] = sends
    versions[TASKS] = max(versions.values()) if versions else next_version(None, None)
