"""Reads chat messages of OpenAI and of Anthropic, which are stored in the same kinds of files.

It accepts a list of messages, {"messages": […]}, a list of either, and JSONL of any of them (the fine-tuning format).
Messages without a field `created_at` or `timestamp` have no time: such a conversation begins at the base time
(2000-01-01 by default), with one turn per second. Anthropic's field `system`, beside the messages, becomes the first
turn.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from turnlog.agent.context.wire import called, message_content
from turnlog.agent.conversations.blocks import content_of
from turnlog.agent.operations.importers.imported import (
    MALFORMED,
    Conversation,
    Defaults,
    ImportedTurn,
    Item,
    Rejected,
    ThreadNames,
    reason_of,
)
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import Content, ThinkingBlock, ToolCall, TurnRecorded

Message = dict[str, Any]
_ROLES = {"developer": "system", "function": "tool", "human": "user", "ai": "assistant", "model": "assistant"}


def read_openai(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """Yields the turns of the records. stem: the thread of the first conversation that has no id."""
    names = ThreadNames(defaults, stem)
    flat: tuple[int, OpenAIConversation] | None = None
    for record in records:
        if record.error:
            yield Rejected(record.where, record.error)
        elif isinstance(record.value, dict) and ("role" in record.value or "messages" not in record.value):
            if flat is None or flat[0] != record.group:
                flat = record.group, OpenAIConversation(Conversation(defaults, names.next(), None, None))
            yield flat[1].item(record.where, record.value)
        else:
            yield from _whole(record, defaults, names)


def _whole(record: Record, defaults: Defaults, names: ThreadNames) -> Iterator[Item]:
    """Yields the turns of a record that is a complete conversation."""
    value = {"messages": record.value} if isinstance(record.value, list) else record.value
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        yield Rejected(record.where, "neither a message nor a conversation with a list of messages")
        return
    thread = names.next(value.get("thread_id") or value.get("id"))
    label, user = value.get("title") or value.get("label"), value.get("user")
    opened = OpenAIConversation(Conversation(defaults, thread, _text(label), _text(user)))
    system = [{"role": "system", "content": value["system"]}] if value.get("system") else []
    for number, message in enumerate(system + value["messages"], 1):
        yield opened.item(f"{record.where}, message {number}", message)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


class OpenAIConversation:
    """Converts messages to turns; remembers legacy function calls, whose results name only the function."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._legacy_calls: dict[str, str] = {}

    def item(self, where: str, message: Any) -> Item:
        self._conversation.number += 1
        try:
            return self._turn(message)
        except MALFORMED as error:
            return Rejected(where, reason_of(error))

    def _turn(self, message: Any) -> ImportedTurn:
        if not isinstance(message, dict):
            raise ValueError(f"a message must be an object, not {type(message).__name__}")
        own_id = _text(message.get("id"))
        calls, is_legacy = self._calls(message), message.get("role") == "function"
        data = TurnRecorded(
            role=self._role(message),
            content=_content(message, calls),
            name=None if is_legacy else message.get("name"),
            tool_calls=calls,
            tool_call_id=self._legacy_calls.get(str(message.get("name"))) if is_legacy else message.get("tool_call_id"),
            model=_text(message.get("model")),
            source_id=own_id or f"M{self._conversation.number}",
        )
        return self._conversation.turn(data, message.get("created_at") or message.get("timestamp"), own_id)

    def _role(self, message: Message) -> Any:
        """Returns the role of a message. Anthropic sends tool results in messages of the user: a message that contains
        nothing else gets the role tool."""
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if parts and all(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts):
            return "tool"
        role = message.get("role")
        return _ROLES.get(role, role) if isinstance(role, str) else role

    def _calls(self, message: Message) -> tuple[ToolCall, ...]:
        calls = tuple(self._call(call, call, index) for index, call in enumerate(message.get("tool_calls") or ()))
        legacy = message.get("function_call")
        if not legacy:
            return calls
        call = self._call({}, legacy, len(calls))
        self._legacy_calls[call.name] = call.id
        return (*calls, call)

    def _call(self, call: Message, function: Message, index: int) -> ToolCall:
        name, arguments = called(function)
        return ToolCall(
            id=call.get("id") or f"call_{self._conversation.number}_{index}",
            name=name or "",
            arguments=(arguments or "{}") if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
        )


def _content(message: Message, calls: tuple[ToolCall, ...]) -> Content:
    """Returns the content, the refusal or the audio transcript, after any reasoning; a message with tool calls may have
    no content."""
    value = message_content(message)
    content = content_of("" if value is None and calls else value)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(reasoning, str):
        return content
    rest = content_of([content] if content else []) if isinstance(content, str) else content
    return ThinkingBlock(thinking=reasoning), *rest
