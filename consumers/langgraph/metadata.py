"""What a RunnableConfig and metadata say to the saver, as plain JSON (pure)."""

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_serializable_checkpoint_metadata
from pydantic_core import from_json, to_json

from turnlog.consumers.langgraph.tuples import ROOT


def place_of(config: RunnableConfig) -> tuple[str, str, str | None]:
    """(thread, namespace, checkpoint id or None)."""
    asked = config["configurable"]
    checkpoint_id = asked.get("checkpoint_id")
    return str(asked["thread_id"]), str(asked.get("checkpoint_ns", ROOT)), str(checkpoint_id) if checkpoint_id else None


def user_of(config: RunnableConfig) -> str | None:
    """The configurable `user_id`: whose data the events are."""
    user = config["configurable"].get("user_id")
    return None if user is None or user == "" else str(user)


def plain_metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
    """As LangGraph's own savers collect it, less what no database can hold; other values as their text."""
    return plain(dict(get_serializable_checkpoint_metadata(config, metadata)))


def plain(value: dict[str, Any]) -> dict[str, Any]:
    text = to_json(value, fallback=str, serialize_unknown=True, inf_nan_mode="strings", bytes_mode="base64")
    found: dict[str, Any] = _clean(from_json(text))
    return found


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
