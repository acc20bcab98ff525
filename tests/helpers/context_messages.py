"""Short functions that make stored messages for the tests of the context."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from turnlog.projectors.models.conversation.message import Message

NOW = datetime(2025, 1, 1, tzinfo=UTC)
_seq = count(1)

Content = str | list[dict[str, Any]]


def turn(role: str, content: Content = "", *, seq: int = 0, event_id: UUID | None = None, **more: Any) -> Message:
    return Message(seq=seq or next(_seq), event_id=event_id or uuid4(), role=role, content=content, time=NOW, **more)


def user(content: Content = "hello", **more: Any) -> Message:
    return turn("user", content, **more)


def assistant(content: Content = "hi", *call_ids: str, **more: Any) -> Message:
    calls = [{"id": i, "name": "search", "arguments": '{"q": "x"}'} for i in call_ids]
    return turn("assistant", content, tool_calls=calls, **more)


def tool(call_id: str | None, content: Content = "found it", **more: Any) -> Message:
    return turn("tool", content, tool_call_id=call_id, **more)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def thinking(value: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": None}


def tool_use(call_id: str, name: str = "bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def tool_result(call_id: str, content: Content = "done", is_error: bool = False) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}


def image(url: str = "https://example.org/a.png") -> dict[str, Any]:
    return {"type": "image", "url": url, "media_type": None}


def chat(pairs: int, words: int = 40) -> list[Message]:
    """Returns a plain conversation of `pairs` questions and answers of about `words` tokens each."""
    turns: list[Message] = []
    for n in range(pairs):
        turns.append(user(f"question {n} " + "word " * words))
        turns.append(assistant(f"answer {n} " + "reply " * words))
    return turns


def roles(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]
