"""Exports the transcript as turnlog's jsonl, which imports as equal turns, or as OpenAI chat messages."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from turnlog.projectors.models.conversation.message import Cost, Message

_NOT_IN_NAMES = re.compile(r"[\s<|\\/>]+")


def export_jsonl(
    rows: Iterable[Message],
    *,
    tenant: str,
    thread: str,
    label: str | None = None,
    costs: Mapping[int, Cost] = MappingProxyType({}),
) -> Iterator[str]:
    """Yields one JSON line per turn, with its newline. `user`, `name` and `source_id` are written even if they are
    null, because a missing field gets a default when it is imported. costs: sequence of a turn → its tokens and
    latency."""
    for row in rows:
        cost = costs.get(row.seq)
        line = {
            "event_id": str(row.event_id),
            "tenant": tenant,
            "thread": thread,
            "user": row.user,
            "role": row.role,
            "name": row.name,
            "time": row.time.isoformat(),
            "source_id": row.source_id,
            "origin": row.origin,
            "content": row.content,
            **_present(label=label, tool_call_id=row.tool_call_id, agent=row.agent, model=row.model),
            **_present(tool_calls=row.tool_calls or None, **asdict(cost) if cost else {}),
        }
        yield json.dumps(line, ensure_ascii=False) + "\n"


def export_openai(rows: Iterable[Message]) -> dict[str, list[dict[str, Any]]]:
    """Returns {"messages": […]} in the format of the OpenAI chat API, without thinking, times and ids."""
    return {"messages": [message for row in rows for message in _openai(row)]}


def _present(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _openai(row: Message) -> Iterator[dict[str, Any]]:
    """Yields the messages of a turn. Tool results inside its blocks become separate messages, as OpenAI requires."""
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
    """Returns parts that are only text as a string, and no parts as None; only messages of a user may contain
    images."""
    if all(part["type"] == "text" for part in parts) or role != "user":
        return "\n".join(part.get("text", "[image]") for part in parts) if parts else None
    return parts


def _result_text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "[image]") for block in content)


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
