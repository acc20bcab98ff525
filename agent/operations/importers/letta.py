"""Reads Letta's data: an agent file (.af), or the list of messages that its API returns.

thread = the agent's name, because each file numbers its agents from the start. The text in a call of `send_message` is
the answer; text outside of it is the agent's thinking. The block `human` becomes a memory with the origin `imported`.
Instructions, other blocks and Letta's own notices are left out. A file contains an agent's newest 50 messages.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

from turnlog.agent.conversations.blocks import content_of
from turnlog.agent.operations.importers.branches import as_content
from turnlog.agent.operations.importers.imported import (
    EMPTY,
    MALFORMED,
    Conversation,
    Defaults,
    ImportedMemory,
    Item,
    Rejected,
    Skipped,
    ThreadNames,
    reason_of,
)
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import Block, TextBlock, ThinkingBlock, ToolCall, TurnRecorded

Message = dict[str, Any]
SAYS = "send_message"
_THOUGHTS = frozenset({"reasoning", "redacted_reasoning", "omitted_reasoning"})
_BESIDE = frozenset({"tool_call", "tool_return"})  # parts that repeat fields of a message
_KINDS = {
    **{"user_message": "user", "assistant_message": "assistant", "reasoning_message": "assistant"},
    **{"tool_call_message": "assistant", "tool_return_message": "tool"},
}


def read_letta(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """Yields the turns and memories of the agents in the records."""
    names = ThreadNames(defaults, stem)
    listed: _Agent | None = None
    for record in records:
        value = record.value
        if record.error or not isinstance(value, dict):
            yield Rejected(record.where, record.error or "neither an agent nor a message of Letta")
        elif "message_type" in value:
            listed = listed or _Agent(Conversation(defaults, names.next(), None, None))
            yield from listed.items(record.where, value)
        else:
            yield from _file(record.where, value, names, defaults)


def _file(where: str, value: Message, names: ThreadNames, defaults: Defaults) -> Iterator[Item]:
    agents = value.get("agents") if isinstance(value.get("agents"), list) else [value]
    for agent in cast(list[Any], agents):
        try:
            thread = names.next(agent.get("name"))
            opened = _Agent(Conversation(defaults, thread, None, None))
            for number, message in enumerate(agent.get("messages") or (), 1):
                yield from opened.items(f"{thread}, message {number}", message)
        except MALFORMED as error:
            yield Rejected(where, reason_of(error))
    for number, block in enumerate(value.get("blocks") or value.get("core_memory") or (), 1):
        position = f"{where}, block {number}"
        if not isinstance(block, dict) or block.get("label") != "human":
            yield Skipped(position, "a memory block that is not about the user")
        elif str(block.get("value") or "").strip():
            text = str(block["value"])
            yield ImportedMemory(position, defaults.user, "letta", "human", text, kind="SUMMARY", category="human")


class _Agent:
    """Reads the conversation of one agent; remembers calls of `send_message`, whose results are left out."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._said = set[str]()

    def items(self, where: str, message: Message) -> Iterator[Item]:
        self._conversation.number += 1
        try:
            item = self._data(message)
            if isinstance(item, str):
                yield Skipped(where, item)
                return
            time = message.get("created_at") or message.get("date")
            key = f"{time}\n{item.model_dump_json(exclude={'source_id', 'origin'})}" if time else None
            yield self._conversation.turn(item, time, key)
        except MALFORMED as error:
            yield Rejected(where, reason_of(error))

    def _data(self, message: Message) -> TurnRecorded | str:
        """Returns the turn, or the reason why there is none."""
        role = _KINDS.get(message.get("message_type", ""), message.get("role"))
        if role not in ("user", "assistant", "tool"):
            return "instructions or an approval, not a turn of a conversation"
        calls = list(self._calls(message))
        content = as_content([*_parts(message), *(TextBlock(text=text) for text in self._spoken(calls))])
        call = message.get("tool_call_id")
        if role == "tool" and call in self._said:
            return "the receipt of a message that was sent"
        if role == "user":
            content = _without_envelope(content) if isinstance(content, str) else content
        kept = tuple(tool_call for tool_call in calls if tool_call.name != SAYS)
        if not content and not kept:
            return EMPTY
        return TurnRecorded(
            role=cast(Any, role),
            content=content or "",
            name=message.get("name") if role == "user" else None,
            tool_calls=kept,
            tool_call_id=call if role == "tool" else None,
            model=message.get("model") if role == "assistant" else None,
            source_id=message.get("id"),
        )

    def _calls(self, message: Message) -> Iterator[ToolCall]:
        for call in message.get("tool_calls") or [single for single in (message.get("tool_call"),) if single]:
            about = call.get("function") or call
            yield ToolCall(id=call.get("id") or call["tool_call_id"], name=about["name"], arguments=about["arguments"])

    def _spoken(self, calls: Iterable[ToolCall]) -> Iterator[str]:
        for call in calls:
            if call.name == SAYS:
                self._said.add(call.id)
                yield str(json.loads(call.arguments).get("message", ""))


def _parts(message: Message) -> Iterator[Block]:
    """Yields the content as blocks; text outside of a call of `send_message` is the agent's thinking."""
    if isinstance(thought := message.get("reasoning"), str):
        yield ThinkingBlock(thinking=thought)
    value = message.get("content", message.get("text", message.get("tool_return")))
    parts = [{"type": "text", "text": value}] if isinstance(value, str) else value or []
    says = any((call.get("function") or call).get("name") == SAYS for call in message.get("tool_calls") or ())
    for part in parts:
        if part["type"] in _THOUGHTS:
            if part.get("reasoning"):
                yield ThinkingBlock(thinking=part["reasoning"])
        elif says and part["type"] == "text":
            yield ThinkingBlock(thinking=part["text"])
        elif part["type"] not in _BESIDE:
            yield from cast(Iterable[Block], content_of([part]))


def _without_envelope(text: str) -> str:
    """Returns a person's words without the JSON object in which older servers wrapped them; "" for Letta's own
    notices."""
    try:
        envelope = json.loads(text)
    except ValueError:
        return text
    if not isinstance(envelope, dict) or not {"type", "time"} <= envelope.keys():
        return text
    return str(envelope.get("message", "")) if envelope["type"] == "user_message" else ""
