"""Reads ChatGPT's data export: conversations.json, or the zip that contains it.

A conversation is a tree of nodes, which branches at edits and retries; the branch that ends in `current_node`, which
the person saw last, is imported. thread = the conversation's id, label = its title, source_id = message id. Hidden
messages, empty messages and other branches are skipped. Files are only named in the text, because the export refers to
them by addresses that only ChatGPT can open (`sediment://`, `file-service://`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from turnlog.agent.operations.importers.branches import OTHER_BRANCH, path_to
from turnlog.agent.operations.importers.imported import (
    EMPTY,
    MALFORMED,
    Conversation,
    Defaults,
    ImportedTurn,
    Item,
    Rejected,
    Skipped,
    ThreadNames,
    reason_of,
)
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import Block, Content, TextBlock, ThinkingBlock, ToolCall, TurnRecorded

HIDDEN = frozenset(("user_editable_context", "model_editable_context"))
Part = dict[str, Any]


def content_of(content: Part) -> Content:
    """Returns the content as text, or as blocks if there is more than text. Raises ValueError for an unknown type."""
    kind = content.get("content_type")
    make = _TYPES.get(str(kind))
    if make is not None:
        return make(content)
    if isinstance(content.get("text"), str):
        return str(content["text"])
    raise ValueError(f"content_type {kind!r} is not known and has no text")


def _part(part: Any) -> Block:
    if isinstance(part, str):
        return TextBlock(text=part)
    kind = part.get("content_type")
    if kind == "audio_transcription":
        return TextBlock(text=part["text"])
    if "asset_pointer" in part:
        return TextBlock(text="[attached image]" if kind == "image_asset_pointer" else "[attached recording]")
    return TextBlock(text=f"[{kind}]")


def _thoughts(content: Part) -> Content:
    return tuple(
        ThinkingBlock(thinking="\n".join(filter(None, (thought.get("summary"), thought.get("content")))))
        for thought in content["thoughts"]
    )


def _quote(content: Part) -> Content:
    """Returns a passage of a web page or file that ChatGPT has read, after its title and address."""
    source = " ".join(filter(None, (content.get("title"), content.get("url"))))
    return f"{source}\n{content.get('text') or ''}".strip()


_TYPES: dict[str, Callable[[Part], Content]] = {
    "text": lambda content: "\n".join(part for part in content["parts"] if isinstance(part, str)),
    "multimodal_text": lambda content: tuple(_part(part) for part in content["parts"] if part),
    "code": lambda content: str(content["text"]),
    "execution_output": lambda content: str(content["text"]),
    "thoughts": _thoughts,
    "reasoning_recap": lambda content: (ThinkingBlock(thinking=content["content"]),),
    "tether_quote": _quote,
    "tether_browsing_display": lambda content: "\n".join(filter(None, (content.get("result"), content.get("summary")))),
    "system_error": lambda content: f"{content.get('name') or 'error'}: {content.get('text') or json.dumps(content)}",
}


Node = dict[str, Any]


def read_chatgpt(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """Yields the turns of every conversation in the records."""
    names = ThreadNames(defaults, stem)
    for record in records:
        try:
            conversation, nodes = _conversation(record, defaults, names)
        except MALFORMED as error:
            yield Rejected(record.where, reason_of(error))
            continue
        for node in nodes:
            if node.get("message") is not None:
                yield conversation.item(node["message"])
        shown = {id(node) for node in nodes}
        for key, node in record.value["mapping"].items():
            if id(node) not in shown and node.get("message") is not None:
                yield Skipped(f"{conversation.thread}, message {key}", OTHER_BRANCH)


def _conversation(record: Record, defaults: Defaults, names: ThreadNames) -> tuple["ChatGPTConversation", list[Node]]:
    value = record.value
    if record.error or not isinstance(value, dict) or not isinstance(value.get("mapping"), dict):
        raise ValueError(record.error or "not a ChatGPT conversation: it lacks `mapping`")
    label = value.get("title") if isinstance(value.get("title"), str) else None
    thread = names.next(value.get("conversation_id") or value.get("id"))
    opened = Conversation(defaults, thread, label, None, value.get("create_time"))
    nodes = branch(value["mapping"], value.get("current_node"))
    return ChatGPTConversation(opened, value.get("default_model_slug")), nodes


def branch(mapping: dict[str, Node], current: Any) -> list[Node]:
    """Returns the nodes from the root to `current`; if there is no such node, follows the newest children."""
    return path_to(current if current in mapping else _newest_leaf(mapping), mapping, "parent")


def _newest_leaf(mapping: dict[str, Node]) -> Any:
    node_id = next((key for key, node in mapping.items() if node.get("parent") not in mapping), None)
    seen: set[Any] = set()
    while node_id in mapping and node_id not in seen:
        seen.add(node_id)
        children = [child for child in mapping[node_id].get("children") or () if child in mapping]
        if not children:
            break
        node_id = children[-1]
    return node_id


class ChatGPTConversation:
    """Converts messages to turns; pairs a tool's answer with the open call of that tool.

    model: the model of answers that do not name one.
    """

    def __init__(self, conversation: Conversation, model: str | None) -> None:
        self._conversation = conversation
        self.thread = conversation.thread
        self._model = model
        self._open_calls: dict[str, str] = {}

    def item(self, message: Any) -> Item:
        where = f"{self._conversation.thread}, message {message.get('id') if isinstance(message, dict) else '?'}"
        try:
            reason = _hidden(message)
            if reason:
                return Skipped(where, reason)
            return self._turn(message)
        except MALFORMED as error:
            return Rejected(where, reason_of(error))

    def _turn(self, message: Node) -> ImportedTurn:
        self._conversation.number += 1
        role, name = message["author"]["role"], message["author"].get("name")
        call = self._call(message)
        data = TurnRecorded(
            role=role,
            name=name if role in ("tool", "user") else None,
            content=_with_files(content_of(message["content"]), message) if call is None else "",
            tool_calls=(call,) if call else (),
            tool_call_id=self._open_calls.get(name) if role == "tool" else None,
            model=(message.get("metadata") or {}).get("model_slug") or self._model if role == "assistant" else None,
            source_id=message.get("id"),
            origin="quoted" if role == "user" and not _is_typed(message["content"]) else None,
        )
        return self._conversation.turn(data, message.get("create_time"), data.source_id)

    def _call(self, message: Node) -> ToolCall | None:
        """Returns the tool call of an assistant message whose recipient is a tool; the text of the message is the
        argument. Returns None for other messages."""
        tool = message.get("recipient") or "all"
        if message["author"]["role"] != "assistant" or tool == "all":
            return None
        content = content_of(message["content"])
        text = content if isinstance(content, str) else "\n".join(getattr(b, "text", "") for b in content)
        self._open_calls[tool] = message["id"]
        return ToolCall(id=message["id"], name=tool, arguments=text)


def _is_typed(content: Part) -> bool:
    """Returns whether a user's message contains the user's own words: typed text or speech."""
    parts = [part for part in content.get("parts") or () if isinstance(part, dict)]
    is_own = content.get("content_type") in ("text", "multimodal_text")
    return is_own and all(part.get("direction") != "out" for part in parts)


def _with_files(content: Content, message: Node) -> Content:
    """Returns the names of the attached files that are not among the content's parts, followed by the content."""
    parts = [part for part in message["content"].get("parts") or () if isinstance(part, dict)]
    among = {str(part.get("asset_pointer")).rpartition("/")[2].partition("#")[0] for part in parts}
    files = (message.get("metadata") or {}).get("attachments") or ()
    names = [TextBlock(text=f"[attached file: {file['name']}]") for file in files if file.get("id") not in among]
    if not names:
        return content
    return (*names, *((TextBlock(text=content),) if isinstance(content, str) else content))


def _hidden(message: Node) -> str | None:
    """Returns why a message is left out (ChatGPT hides it, or it is empty); None if it is not."""
    content = message.get("content") or {}
    if (message.get("metadata") or {}).get("is_visually_hidden_from_conversation"):
        return "hidden in ChatGPT"
    if content.get("content_type") in HIDDEN:
        return f"hidden in ChatGPT: {content['content_type']}"
    if not content:
        return EMPTY
    empty = not content.get("text") and not any(content.get("parts") or ())
    return EMPTY if content.get("content_type") in ("text", "code", "multimodal_text") and empty else None
