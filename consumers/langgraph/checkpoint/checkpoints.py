"""Checkpoints with their values and writes, and their LangGraph forms: configs, metadata, tuples (pure)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.types import TASKS
from pydantic_core import from_json, to_json

from turnlog.consumers.langgraph.checkpoint.items import Codec
from turnlog.consumers.langgraph.checkpoint.recorded import RecordedMessages
from turnlog.consumers.langgraph.checkpoint.values import Listed, Value

ROOT = ""  # the namespace of the outermost graph
FIRST_WITHOUT_SENDS = 4  # version of the checkpoint format


class Written(NamedTuple):
    """A write of a task."""

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
    """A checkpoint. checkpoint, metadata: JSON text; values: (channel, version) → value, for values stored separately.

    is_old: it has an old format, in which the pending sends, here `sends`, are its parent's writes to TASKS.
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


def without_turns(saved: Saved, turns: Collection[str]) -> Saved:
    """Returns the checkpoint without the messages of these turns in its lists. turns: event ids."""
    if not turns:
        return saved
    lists = {key: value.without(turns) for key, value in saved.values.items() if isinstance(value, Listed)}
    return replace(saved, values={**saved.values, **lists})


def config_of(thread: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def checkpoint_tuple(
    saved: Saved, codec: Codec, recorded: RecordedMessages | None, next_version: Any
) -> CheckpointTuple:
    """Returns the checkpoint in LangGraph's form. recorded: remembers the returned messages; None if the caller does
    not continue from them."""
    checkpoint: dict[str, Any] = from_json(saved.checkpoint)
    values = checkpoint.get("channel_values") or {}
    for channel, version in checkpoint["channel_versions"].items():
        value = saved.values.get((channel, str(version)))
        if value is not None:
            values[channel] = value.load(codec, recorded)
    checkpoint["channel_values"] = values
    if saved.sends:
        sends = [write.value.load(codec, recorded) for write in _sorted(saved.sends)]
        versions = checkpoint["channel_versions"]
        checkpoint["channel_values"][TASKS] = sends
        versions[TASKS] = max(versions.values()) if versions else next_version(None, None)
    return CheckpointTuple(
        config_of(saved.thread, saved.ns, saved.checkpoint_id),
        cast(Checkpoint, checkpoint),
        cast(CheckpointMetadata, from_json(saved.metadata)),
        config_of(saved.thread, saved.ns, saved.parent_id) if saved.parent_id else None,
        [(write.task_id, write.channel, write.value.load(codec, recorded)) for write in _sorted(saved.writes)],
    )


def _sorted(writes: Iterable[Written]) -> list[Written]:
    return sorted(writes, key=lambda write: write.order)


def place_of(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Returns (thread, namespace, checkpoint id or None)."""
    asked = config["configurable"]
    checkpoint_id = asked.get("checkpoint_id")
    return str(asked["thread_id"]), str(asked.get("checkpoint_ns", ROOT)), str(checkpoint_id) if checkpoint_id else None


def user_of(config: RunnableConfig) -> str | None:
    """Returns the configurable `user_id`, to whom the events belong; if there is none, the user of LangGraph's
    server.
    """
    asked = config["configurable"]
    user = asked.get("user_id") or asked.get("langgraph_auth_user_id")
    return None if user is None or user == "" else str(user)


def plain_metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
    """Returns the metadata as LangGraph's own savers collect it, without NUL characters; values that JSON cannot
    represent become text."""
    value = dict(get_serializable_checkpoint_metadata(config, metadata))
    text = to_json(value, fallback=str, serialize_unknown=True, inf_nan_mode="strings", bytes_mode="base64")
    plain: dict[str, Any] = _clean(from_json(text))
    return plain


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
