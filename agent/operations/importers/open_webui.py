"""Reads Open WebUI's chat-export-….json: a list of chats, each of which is a tree of messages.

thread = the chat's id, label = its title, source_id = the message's id. The branch that ends in `currentId` is
imported. Open WebUI writes thinking and tool calls into the text as `<details>` elements; they become blocks.
"""

import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from turnlog.agent.operations.importers.branches import Fields, Message, Tree, as_content, read_trees
from turnlog.agent.operations.importers.imported import Defaults, Item, ThreadNames
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import (
    Block,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    TurnRecorded,
)

_FIELDS = Fields("id", "parentId", "timestamp")
_OPENING = re.compile(r'<details type="(reasoning|tool_calls)"([^<>]*)>')
_CLOSING = "</details>"
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_SUMMARY = re.compile(r"^\s*<summary>[^<]*</summary>")
_QUOTED = re.compile(r"^> ?", re.MULTILINE)
# NATS refuses events of more than 8 MB, and an event may contain several images.
_LARGEST_IMAGE = 2_000_000


def read_open_webui(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """Returns the turns of every chat in the records."""
    return read_trees(records, ThreadNames(defaults, stem), defaults, _FIELDS, _tree, _data)


def _tree(value: dict[str, Any]) -> Tree:
    chat = value["chat"] if isinstance(value.get("chat"), dict) else value
    history = chat.get("history")
    if not isinstance(history, dict) or not isinstance(history.get("messages"), dict):
        raise ValueError("not an Open WebUI chat: it lacks an object `history` with `messages`")
    messages = [
        {"id": key, **message} if isinstance(message, dict) else message for key, message in history["messages"].items()
    ]
    start = value.get("created_at") or chat.get("timestamp")
    return Tree(
        value.get("id") or chat.get("id"),
        value.get("title") or chat.get("title"),
        start,
        messages,
        history.get("currentId"),
    )


def _data(message: Message, model: str | None) -> TurnRecorded | None:
    error = message.get("error")
    failed = error.get("content") if isinstance(error, dict) else None
    said = [
        *_blocks(message.get("content") or "", message["id"]),
        TextBlock(text=f"[error] {failed}" if failed else ""),
    ]
    content = as_content([*map(_file, message.get("files") or ()), *said])
    if not content:
        return None
    role = message["role"]
    model = message.get("model") if role == "assistant" else None
    return TurnRecorded(role=role, content=content, model=model, source_id=message["id"])


def _file(file: Message) -> Block:
    url = file.get("url") or ""
    if file.get("type") != "image":
        return TextBlock(text=f"[attached file: {file.get('name') or file.get('title') or 'unnamed'}]")
    if url.startswith(("data:", "http://", "https://")) and len(url) <= _LARGEST_IMAGE:
        return ImageBlock(url=url)
    return TextBlock(text="[attached image]")


def _blocks(text: str, message_id: str) -> Iterator[Block]:
    """Yields the text, with thinking and tool calls as separate blocks."""
    position = 0
    for opening in _OPENING.finditer(text):
        end = text.find(_CLOSING, opening.end())
        if end < 0:
            break
        if opening.start() < position:
            continue
        yield TextBlock(text=text[position : opening.start()].strip())
        inside = html.unescape(_SUMMARY.sub("", text[opening.end() : end], count=1)).strip()
        if opening[1] == "reasoning":
            yield ThinkingBlock(thinking=_QUOTED.sub("", inside))
        else:
            yield from _call(dict(_ATTRIBUTE.findall(opening[2])), inside, f"{message_id}-{opening.start()}")
        position = end + len(_CLOSING)
    yield TextBlock(text=text[position:].strip() if position else text)


def _call(attributes: dict[str, str], inside: str, id: str) -> Iterator[Block]:
    """Yields a tool call and its result; older versions write the result into an attribute, newer ones between the
    tags."""
    id = attributes.get("id") or id
    arguments = _decoded(html.unescape(attributes.get("arguments", "")))
    made = arguments if isinstance(arguments, dict) else {"arguments": arguments} if arguments else {}
    yield ToolUseBlock(id=id, name=html.unescape(attributes.get("name", "")), input=made)
    result = _decoded(html.unescape(attributes.get("result", "")) or inside)
    if attributes.get("done") != "false":
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        yield ToolResultBlock(tool_use_id=id, content=text)


def _decoded(text: str, depth: int = 2) -> Any:
    """Returns the JSON value of the text, or of JSON inside a JSON string. A text that is not JSON is returned
    unchanged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _decoded(value, depth - 1) if isinstance(value, str) and depth > 1 else value
