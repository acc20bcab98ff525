"""Converts items of the Responses API to chat messages and back, and reads ids of responses, which name their
conversation.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from turnlog.consumers.api.dialects.openai.errors import Unusable
from turnlog.events.errors import NotFound
from turnlog.projectors.models.conversation.message import Message

Item = Mapping[str, Any]
_ID = re.compile(r"(?:resp|msg|(?:fc|rs)_\d+)_([0-9a-f]{32})([A-Za-z0-9_-]+)")
_TEXTS = ("input_text", "output_text", "text")


def id_part(answer: UUID, thread: str | None) -> str:
    """Returns the common last part of the ids of a response and its items. Only a stored response can be continued."""
    return answer.hex + base64.urlsafe_b64encode((thread or "").encode()).decode().rstrip("=")


def place_in(id_: str) -> tuple[str, UUID]:
    """Returns the thread and the answer that an id stands for. Raises NotFound."""
    parts = _ID.fullmatch(id_)
    try:
        if parts is not None:
            thread = base64.urlsafe_b64decode(parts[2] + "=" * (-len(parts[2]) % 4)).decode()
            return thread, UUID(parts[1])
    except ValueError:
        pass
    raise NotFound(f"there is no response or item {id_[:100]!r}, or it was not stored")


def messages_of(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Returns the items as chat messages. The calls of an answer and its text become one message. Raises Unusable."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match item.get("type", "message"):
            case "message":
                name = {"name": item["name"]} if item.get("name") else {}
                messages.append({"role": item.get("role"), **name, "content": _content(item.get("content"))})
            case "function_call" | "custom_tool_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(_call(item))
            case "function_call_output" | "custom_tool_call_output":
                output = _content(item.get("output"))
                messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
            case "compaction":
                messages.append({"role": "system", "content": _summary_in(item)})
            case "reasoning":
                pass  # left out, because providers ask clients not to send reasoning back
            case kind:
                raise Unusable("input", f"items of type {kind!r} are not supported")
    return messages


def compacted(id_: UUID, summary: str) -> dict[str, Any]:
    """Returns the summary of a conversation as an item that `messages_of` can read."""
    return {
        "type": "compaction",
        "id": f"cmp_{id_.hex}",
        "encrypted_content": base64.urlsafe_b64encode(summary.encode()).decode(),
    }


def _summary_in(item: Item) -> str:
    try:
        summary = base64.urlsafe_b64decode(str(item.get("encrypted_content"))).decode()
    except ValueError:
        raise Unusable("input", "the compaction was not made by this server") from None
    return f"Summary of the conversation so far:\n{summary}"


def item_of(turn: Message) -> list[dict[str, Any]]:
    """Returns a stored turn as the items of a conversation."""
    id_ = turn.event_id.hex
    if turn.role == "tool":
        output = turn.content if isinstance(turn.content, str) else _parts(turn.content, "input_text")
        return [{"type": "function_call_output", "id": f"fco_{id_}", "call_id": turn.tool_call_id, "output": output}]
    items: list[dict[str, Any]] = []
    if turn.content or not turn.tool_calls:
        parts = [{"type": "text", "text": turn.content}] if isinstance(turn.content, str) else turn.content
        content = _parts(parts, "output_text" if turn.role == "assistant" else "input_text")
        about = {"id": f"msg_{id_}", "status": "completed", "role": turn.role}
        name = {"name": turn.name} if turn.name else {}
        items.append({"type": "message", **about, **name, "content": content})
    for at, call in enumerate(turn.tool_calls):
        about = {"id": f"fc_{at}_{id_}", "call_id": call["id"], "status": "completed"}
        items.append({"type": "function_call", **about, "name": call["name"], "arguments": call["arguments"]})
    return items


def tools_of(tools: Sequence[Item]) -> list[dict[str, Any]]:
    """Returns functions and custom tools in the form of the chat completions API. Raises Unusable."""
    made = list[dict[str, Any]]()
    for name, tool in by_full_name(tools):
        if (kind := tool.get("type")) not in ("function", "custom"):
            raise Unusable("tools", f"tools of type {kind!r} are not supported; function, custom and namespace are")
        own = {field: tool[field] for field in tool if field not in ("type", "namespace")}
        made.append({"type": kind, kind: own | ({"name": name} if "name" in own else {})})
    return made


def by_full_name(tools: Sequence[Item]) -> Iterator[tuple[Any, Item]]:
    """Yields each tool with the name by which a model calls it; one of a namespace has the field `namespace`."""
    for tool in tools:
        if tool.get("type") != "namespace":
            yield tool.get("name"), tool
            continue
        for each in tool.get("tools") or ():
            inside = {**each, "namespace": tool.get("name")}
            yield _full_name(inside), inside


def _full_name(named: Item) -> Any:
    return f"{named['namespace']}__{named.get('name')}" if named.get("namespace") else named.get("name")


def _call(item: Item) -> dict[str, Any]:
    if item.get("type") == "custom_tool_call":
        custom = {"name": _full_name(item), "input": item.get("input") or ""}
        return {"id": item.get("call_id"), "type": "custom", "custom": custom}
    function = {"name": _full_name(item), "arguments": item.get("arguments") or "{}"}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [_part(part) if isinstance(part, dict) else part for part in content]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part.get("type"):
        case "input_image":
            image = {"url": part.get("image_url"), "detail": part.get("detail") or "auto"}
            return {"type": "image_url", "image_url": image}
        case "input_file":
            return {"type": "file", "file": {name: part[name] for name in part if name != "type"}}
        case kind if kind in _TEXTS:
            return {"type": "text", "text": part.get("text")}
    return part


def _parts(blocks: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    more: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
    return [
        {"type": "input_image", "image_url": block.get("url"), "detail": "auto"}
        if block["type"] == "image"
        else {"type": kind, "text": str(block.get("text", "")), **more}
        for block in blocks
    ]
