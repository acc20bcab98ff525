"""One row of the transcript as readers get it. Content stays plain JSON: no model is built per row."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Message:
    """A stored turn. content: a string, or a list of blocks as in events.contracts (dicts with `type`).

    tool_calls: list of {"id", "name", "arguments"}; seq: stream sequence, the order within the thread.
    """

    seq: int
    event_id: UUID
    role: str
    content: str | list[dict[str, Any]]
    time: datetime
    name: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    tool_call_id: str | None = None
    user: str | None = None
    source_id: str | None = None
    agent: str | None = None
    model: str | None = None
