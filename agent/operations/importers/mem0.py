"""Reads mem0's memories: answers of `Memory.get_all`, of mem0's server or of its platform, a list of memories, or
OpenMemory's format.

A model wrote these sentences about a person, so each becomes a memory with the origin `imported`, without a quote.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from turnlog.agent.operations.importers.imported import (
    MALFORMED,
    Defaults,
    ImportedMemory,
    Item,
    Rejected,
    Skipped,
    reason_of,
)
from turnlog.agent.operations.importers.jsontext import Record

_LISTS = ("results", "memories", "items")
_SCOPES = ("agent_id", "app_id", "run_id", "session_id", "actor_id")


def read_mem0(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """Yields the memories of the records; a record is one memory or an answer with a list of them."""
    for record in records:
        for where, value in [(record.where, None)] if record.error else _listed(record.where, record.value):
            try:
                if record.error:
                    raise ValueError(record.error)
                yield _memory(where, value, defaults)
            except MALFORMED as error:
                yield Rejected(where, reason_of(error))


def _listed(where: str, value: Any) -> list[tuple[str, Any]]:
    """Returns the memories of an answer with their positions; any other value is returned as a single item."""
    lists = [value[name] for name in _LISTS if isinstance(value.get(name), list)] if isinstance(value, dict) else []
    if not lists:
        return [(where, value)]
    return [(f"{where}, memory {number}", item) for number, item in enumerate(lists[0], 1)]


def _memory(where: str, value: Any, defaults: Defaults) -> Item:
    if not isinstance(value, dict) or not isinstance(content := value.get("memory", value.get("content")), str):
        raise ValueError("not a memory of mem0: it lacks a text `memory`")
    if value.get("replaced_by") or value.get("state", "active") != "active":
        return Skipped(where, "no longer in use in mem0")
    categories = [category for category in value.get("categories") or () if isinstance(category, str)]
    return ImportedMemory(
        where,
        defaults.user or value.get("user_id"),
        "mem0",
        str(value["id"]),
        content,
        category=categories[0] if categories else None,
        since=value.get("created_at"),
        until=value.get("expiration_date"),
        metadata={
            **{name: value[name] for name in _SCOPES if value.get(name)},
            **({"metadata": own} if (own := value.get("metadata") or value.get("metadata_")) else {}),
        },
    )
