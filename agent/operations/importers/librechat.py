"""Reads LibreChat's JSON export of one conversation, flat or nested ("recursive").

thread = the conversation's id, label = its title, source_id = the message's id. The export does not say which branch
was shown, so the one with the newest message is imported. Thinking, tool calls and their results become blocks.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from turnlog.agent.conversations.blocks import content_of
from turnlog.agent.operations.importers.branches import Fields, Message, Tree, as_content, read_trees
from turnlog.agent.operations.importers.imported import Defaults, Item, ThreadNames
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import Block, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock, TurnRecorded

_FIELDS = Fields("messageId", "parentMessageId", "createdAt")


def read_librechat(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """Returns the turns of every conversation in the records."""
    hint = "; export the conversation again with the option recursive off"
    hinted = (
        record._replace(error=record.error + hint) if record.error and "nested too deeply" in record.error else record
        for record in records
    )
    return read_trees(hinted, ThreadNames(defaults, stem), defaults, _FIELDS, _tree, _data)


def _tree(value: dict[str, Any]) -> Tree:
    if not isinstance(value.get("messages"), list) or "conversationId" not in value:
        raise ValueError("not a LibreChat conversation: it lacks `conversationId` or a list `messages`")
    messages = _flat(value["messages"])
    dated = [message for message in messages if isinstance(message, dict) and isinstance(message.get("createdAt"), str)]
    leaf = max(dated, key=lambda message: str(message["createdAt"]), default={}).get("messageId")
    options = value.get("options")
    model = options.get("model") if isinstance(options, dict) else None
    return Tree(value["conversationId"], value.get("title"), None, messages, leaf, model)


def _flat(messages: list[Any]) -> list[Any]:
    """Returns the messages and all messages below them, each before its children."""
    waiting, flat = list(reversed(messages)), []
    while waiting:
        message = waiting.pop()
        if isinstance(message, dict):
            children = message.get("children")
            waiting.extend(reversed(children if isinstance(children, list) else []))
            message = {key: value for key, value in message.items() if key != "children"}
        flat.append(message)
    return flat


def _data(message: Message, model: str | None) -> TurnRecorded | None:
    names = [file.get("filename") or "unnamed" for file in message.get("files") or ()]
    content = as_content([*(TextBlock(text=f"[attached file: {name}]") for name in names), *_said(message)])
    if not content:
        return None
    if not isinstance(message.get("isCreatedByUser"), bool):
        raise ValueError("the message does not say whether it `isCreatedByUser`")
    if message["isCreatedByUser"]:
        name = None if message.get("sender") == "User" else message.get("sender") or None
        return TurnRecorded(role="user", content=content, name=name, source_id=message["messageId"])
    own = message.get("model") or model
    return TurnRecorded(role="assistant", content=content, model=own, source_id=message["messageId"])


def _said(message: Message) -> Iterator[Block]:
    parts = message.get("content") or [{"type": "text", "text": message.get("text") or ""}]
    for number, part in enumerate(parts):
        yield from _blocks(part, f"{message['messageId']}-{number}")


def _blocks(part: Message, id: str) -> Iterator[Block]:
    """Yields the blocks of a part. The value is in the field named like the type of the part; for text and thinking, it
    may be an object with the field `value`."""
    kind = part["type"]
    value = part.get(kind)
    text = value.get("value") if isinstance(value, dict) else value
    match kind:
        case "text":
            yield TextBlock(text=text or "")
        case "think":
            yield ThinkingBlock(thinking=text or "")
        case "error":
            yield TextBlock(text=f"[error] {text}")
        case "image_file":
            yield TextBlock(text="[attached image]")
        case "tool_call" if isinstance(value, dict):
            yield from _call(value, id)
        case "agent_update":
            pass
        case _:
            kept = content_of([part])
            yield from (TextBlock(text=kept),) if isinstance(kept, str) else kept


def _call(call: Message, id: str) -> Iterator[Block]:
    function = call.get("function") or call
    id = call.get("id") or id
    arguments = function.get("args") or function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = _object(arguments)
    yield ToolUseBlock(id=id, name=function.get("name") or "", input=arguments)
    if function.get("output") is not None:
        yield ToolResultBlock(tool_use_id=id, content=function["output"])


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"arguments": value}
