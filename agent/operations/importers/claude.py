"""Reads Claude's data export: conversations.json, or the zip that contains it.

thread = the conversation's uuid, label = its name, source_id = the message's uuid. Thinking, tool calls (including
artifacts) and their results stay blocks; attached files are named, with the text that Claude extracted from them. The
imported branch is the one that ends in `current_leaf_message_uuid`, or else in the last message.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from turnlog.agent.conversations.blocks import as_document, content_of
from turnlog.agent.operations.importers.branches import Fields, Message, Tree, as_content, read_trees
from turnlog.agent.operations.importers.imported import Defaults, Item, ThreadNames
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import Block, TextBlock, TurnRecorded

_FIELDS = Fields("uuid", "parent_message_uuid", "created_at")
_ROLES = {"human": "user", "assistant": "assistant"}
_NOT_SAID = frozenset(("token_budget", "flag"))


def read_claude(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """Returns the turns of every conversation in the records."""
    return read_trees(records, ThreadNames(defaults, stem), defaults, _FIELDS, _tree, _data)


def _tree(value: dict[str, Any]) -> Tree:
    messages = value.get("chat_messages")
    if not isinstance(messages, list):
        raise ValueError("not a Claude conversation: it lacks a list `chat_messages`")
    leaf = value.get("current_leaf_message_uuid")
    return Tree(value.get("uuid"), value.get("name"), value.get("created_at"), messages, leaf, value.get("model"))


def _data(message: Message, model: str | None) -> TurnRecorded | None:
    content = as_content([*_files(message), *_said(message)])
    if not content:
        return None
    role: Any = _ROLES.get(message["sender"], message["sender"])
    return TurnRecorded(
        role=role, content=content, model=model if role == "assistant" else None, source_id=message["uuid"]
    )


def _files(message: Message) -> Iterator[Block]:
    """Yields the attached files: first those with text in the export, then those that are only named."""
    attachments = message.get("attachments") or ()
    for attachment in attachments:
        text = attachment.get("extracted_content") or ""
        name = f"[attached file: {attachment.get('file_name') or 'unnamed'}]"
        yield TextBlock(text=f"{name}\n{as_document(text)}" if text.strip() else name)
    for file in message.get("files") or ():
        yield TextBlock(text=f"[attached file: {file.get('file_name') or 'unnamed'}]")


def _said(message: Message) -> tuple[Block, ...]:
    parts = [part for part in message.get("content") or () if part.get("type") not in _NOT_SAID]
    said = content_of(_with_call_ids(parts, message["uuid"])) if parts else content_of(message.get("text") or "")
    return (TextBlock(text=said),) if isinstance(said, str) else said


def _with_call_ids(parts: list[Message], message_id: str) -> list[Message]:
    """Returns the parts. Calls without an id get one from their position; results without an id get the id of the call
    before them."""
    made, last = list[Message](), ""
    for number, part in enumerate(parts):
        if part["type"] == "tool_use":
            last = part.get("id") or f"{message_id}-{number}"
            made.append({**part, "id": last})
        elif part["type"] == "tool_result":
            made.append({**part, "tool_use_id": part.get("tool_use_id") or last or f"{message_id}-{number}"})
        else:
            made.append(part)
    return made
