"""Exports the transcript: as turnlog's jsonl, which imports to equal turns, or as OpenAI chat messages."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from turnlog.projectors.models.conversation.message import Message

_NOT_IN_NAMES = re.compile(r"[\s<|\\/>]+")


def export_jsonl(rows: Iterable[Message], *, tenant: str, thread: str, label: str | None = None) -> Iterator[str]:
    """Yields one JSON line (with its newline) per turn. `user`, `name` and `source_id` are written even when null: a
    missing one gets a default on import."""
    for row in rows:
        line = {
            "event_id": str(row.event_id),
            "tenant": tenant,
            "thread": thread,
            "user": row.user,
            "role": row.role,
            "name": row.name,
            "time": row.time.isoformat(),
            "source_id": row.source_id,
            "content": row.content,
            **_present(label=label, tool_call_id=row.tool_call_id, agent=row.agent, model=row.model),
            **_present(tool_calls=row.tool_calls or None),
        }
        yield json.dumps(line, ensure_ascii=False) + "\n"


def export_openai(rows: Iterable[Message]) -> dict[str, list[dict[str, Any]]]:
    """Returns {"messages": […]} as the OpenAI chat API accepts them, without thinking, times and ids."""
    return {"messages": [message for row in rows for message in _openai(row)]}


def _present(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _openai(row: Message) -> Iterator[dict[str, Any]]:
    """Yields a turn's messages. Tool results inside its blocks become messages of their own, as OpenAI requires."""
    blocks = row.content if isinstance(row.content, list) else [{"type": "text", "text": row.content}]
    for block in blocks:
        if block["type"] == "tool_result":
            yield {
                "role": "tool",
                "tool_call_id": block["tool_use_id"],
                "content": _result_text(block["content"]),
            }
    parts = [part for part in map(_part, blocks) if part]
    calls = [_call(call["id"], call["name"], call["arguments"]) for call in row.tool_calls]
    calls += [
        _call(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False))
        for block in blocks
        if block["type"] == "tool_use"
    ]
    if parts or calls:
        name = _NOT_IN_NAMES.sub("_", row.name)[:64] if row.name and row.role != "tool" else None
        yield {
            "role": row.role,
            "content": _joined(parts, row.role),
            **_present(name=name, tool_call_id=row.tool_call_id, tool_calls=calls or None),
        }


def _part(block: dict[str, Any]) -> dict[str, Any] | None:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    if block["type"] == "image":
        return {"type": "image_url", "image_url": {"url": block["url"]}}
    return None


def _joined(parts: list[dict[str, Any]], role: str) -> str | list[dict[str, Any]] | None:
    """Returns text alone as a string, no text as null; only a user may send images."""
    if all(part["type"] == "text" for part in parts) or role != "user":
        return "\n".join(part.get("text", "[image]") for part in parts) if parts else None
    return parts


def _result_text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "[image]") for block in content)


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
