"""Converts a stored message to messages of the OpenAI chat API.

The API has no thinking blocks and accepts tool results only as separate messages, so one stored message becomes a body,
the tool results in it, and a tail (the assistant's text after a result). message_units.py places the results after
their calls; `to_wire` converts one message alone.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from turnlog.agent.context.condense import EXPORT_POINTERS, THINKING_TYPES, result_text
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.speech import attributed_to

Wire = dict[str, Any]
Blocks = list[dict[str, Any]]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_MAX_ID = 40  # the API refuses longer call ids


class WireOptions(NamedTuple):
    """Options for converting messages. keep_thinking: send an assistant's thinking as a text part
    `<thinking>…</thinking>`. The API has no field for thinking, and providers ask not to send it back, so it is left
    out by default."""

    keep_thinking: bool = False


class Call(NamedTuple):
    """A tool call: its stored id, and the wire form with an id that the API accepts."""

    stored_id: str
    wire: Wire


class Result(NamedTuple):
    """A tool's result. call_id: the stored id; None if the turn has no call id."""

    call_id: str | None
    text: str


def message_content(message: Mapping[str, Any]) -> Any:
    """Returns the content of a chat message without converting it, even if it is empty; without content, the refusal or
    the transcript of the audio; otherwise None."""
    if (content := message.get("content")) is not None:
        return content
    refusal: Any = message.get("refusal")
    return refusal or (message.get("audio") or {}).get("transcript")


def with_tool_calls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the messages with the legacy field `function_call` and role `function`, which are older than tools,
    converted to calls and results.

    An id is derived from name and arguments, so that a history that is sent again is recognised.
    """
    made, ids = list[Mapping[str, Any]](), dict[Any, str]()
    for message in messages:
        call = message.get("function_call")
        if message.get("role") == "function":
            kept = {name: message[name] for name in message if name != "name"}
            message = {**kept, "role": "tool", "tool_call_id": ids.get(message.get("name"), "call")}
        elif isinstance(call, Mapping) and not message.get("tool_calls"):
            id_ = f"call_{sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()[:16]}"
            ids[call.get("name")] = id_
            kept = {name: message[name] for name in message if name != "function_call"}
            message = {**kept, "tool_calls": [{"id": id_, "type": "function", "function": call}]}
        made.append(message)
    return made


def called(call: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns the name and the arguments of a tool call; the arguments of a custom tool are its free-text input. In
    turnlog's own format, both are beside the id."""
    about = call.get("function") or call.get("custom") or call
    arguments = about.get("arguments", about.get("input"))
    return about.get("name"), "" if arguments is None else arguments


def with_custom_calls(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns the messages with calls of custom tools in the custom form. Stored turns keep only the name and text of a
    call; the tools of the request tell which calls are custom."""
    custom = custom_tools(tools)
    return [
        _with_custom_calls(message, custom) if custom and message.get("tool_calls") else message for message in messages
    ]


def custom_tools(tools: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the names of the custom tools among those of a request to the chat API."""
    return {str(tool["custom"].get("name")) for tool in tools if isinstance(tool.get("custom"), Mapping)}


def wire_call(id_: str, name: str, arguments: str, custom: Collection[str]) -> Wire:
    """Returns a call in the form of the chat API. custom: names of tools that take free text."""
    if name in custom:
        return {"id": id_, "type": "custom", "custom": {"name": name, "input": arguments}}
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _with_custom_calls(message: Mapping[str, Any], custom: Collection[str]) -> Wire:
    return {**message, "tool_calls": [wire_call(call["id"], *called(call), custom) for call in message["tool_calls"]]}


def to_wire(message: Message, options: WireOptions) -> list[Wire]:
    """Returns the API messages of one stored message, without matching its calls with results of other messages."""
    main = body(message, options)
    answers = [tool_message(r.call_id or "", r.text) for r in results(message)]
    last = tail(message, options)
    order = [main, *answers, last] if message.role == "assistant" else [*answers, main]
    return [wire for wire in order if wire is not None]


def body(message: Message, options: WireOptions) -> Wire | None:
    """Returns the message without its tool results; None if nothing is left."""
    if message.role == "tool":
        return None
    content = message.content
    if not isinstance(content, str):
        if message.role == "assistant":
            content = content[: _first_result(content)]
        parts = _parts(content, message.role, options)
        is_empty_text = message.role != "assistant" and any(block["type"] == "text" for block in content)
        if not parts and message.content and not calls(message) and not is_empty_text:
            return None
        content = _collapse(parts)
    wire: Wire = {"role": message.role, "content": content}
    speaker = message.name or attributed_to(message)
    if speaker != message.role:
        _put_name(wire, speaker)
    if message.role == "assistant" and (tool_calls := calls(message)):
        wire["content"] = wire["content"] or None
        wire["tool_calls"] = [call.wire for call in tool_calls]
    return wire


def tail(message: Message, options: WireOptions) -> Wire | None:
    """Returns the assistant's text after a result inside the same message, as with tools that run at the provider; None
    if there is none."""
    if message.role != "assistant" or isinstance(message.content, str):
        return None
    parts = _parts(message.content[_first_result(message.content) :], message.role, options)
    return {"role": "assistant", "content": _collapse(parts)} if parts else None


def calls(message: Message) -> list[Call]:
    """Returns the tool calls of an assistant's message, from `tool_calls` and from tool_use blocks; calls with the same
    id count once."""
    if message.role != "assistant" or (isinstance(message.content, str) and not message.tool_calls):
        return []
    raw = [(str(c["id"]), str(c["name"]), str(c.get("arguments") or "{}")) for c in message.tool_calls]
    if not isinstance(message.content, str):
        raw += [
            (str(b["id"]), str(b["name"]), json.dumps(b.get("input") or {}, ensure_ascii=False))
            for b in message.content
            if b["type"] == "tool_use"
        ]
    unique = {call_id: (name, arguments) for call_id, name, arguments in reversed(raw)}
    return [Call(i, _call(i, *unique[i], message.seq)) for i in dict.fromkeys(call_id for call_id, _, _ in raw)]


def results(message: Message) -> list[Result]:
    """Returns the tool results in a message: a tool message is one result, and each tool_result block is one."""
    content = message.content
    blocks = [] if isinstance(content, str) else [b for b in content if b["type"] == "tool_result"]
    of_blocks = [Result(str(b["tool_use_id"]), _result_block_text(b)) for b in blocks]
    if message.role != "tool":
        return of_blocks
    rest = content if isinstance(content, str) else [b for b in content if b["type"] != "tool_result"]
    return [*of_blocks, Result(message.tool_call_id, result_text(rest))] if rest or not of_blocks else of_blocks


def tool_message(call_id: str, text: str) -> Wire:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _call(stored_id: str, name: str, arguments: str, seq: int) -> Wire:
    function = {"name": _NOT_NAME.sub("_", name)[:64] or "unnamed", "arguments": arguments}
    return {"id": _wire_id(stored_id, seq), "type": "function", "function": function}


def _wire_id(stored_id: str, seq: int) -> str:
    if 0 < len(stored_id) <= _MAX_ID:
        return stored_id
    return "call_" + sha256(f"{seq} {stored_id}".encode()).hexdigest()[:24]


def _first_result(blocks: Blocks) -> int:
    return next((i for i, block in enumerate(blocks) if block["type"] == "tool_result"), len(blocks))


def _parts(blocks: Blocks, role: str, options: WireOptions) -> Blocks:
    return [part for block in blocks if (part := _part(block, role, options)) is not None]


def _part(block: dict[str, Any], role: str, options: WireOptions) -> dict[str, Any] | None:
    """Returns a block as a content part; None for calls and results, which are sent separately, for empty text, and for
    thinking that is not sent."""
    kind = block["type"]
    if kind == "text":
        return {"type": "text", "text": block["text"]} if block["text"] else None
    if kind == "image" and role == "user" and not block["url"].startswith(EXPORT_POINTERS):
        return {"type": "image_url", "image_url": {"url": block["url"]}}
    if kind == "image":
        return {"type": "text", "text": result_text([block])}
    if kind in THINKING_TYPES and options.keep_thinking:
        return {"type": "text", "text": f"<thinking>{block.get('thinking', '')}</thinking>"}
    return None


def _collapse(parts: Blocks) -> str | Blocks:
    """Returns a single text part as a string, the form that every provider accepts; other parts stay a list."""
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _result_block_text(block: dict[str, Any]) -> str:
    text = result_text(block.get("content", ""))
    return f"[error] {text}" if block.get("is_error") else text


def _put_name(wire: Wire, name: str) -> None:
    """Adds the speaker: as `name` if that is an ASCII name of at most 64 characters (with "_" for those that the API
    refuses), otherwise before the text, such as "小明: "."""
    ascii_name = _NOT_NAME.sub("_", name).strip("_") if name.isascii() else ""
    if _NAME.fullmatch(name):
        wire["name"] = name
    elif _NAME.fullmatch(ascii_name):
        wire["name"] = ascii_name
    elif isinstance(wire["content"], str):
        wire["content"] = f"{name}: {wire['content']}"
    else:
        wire["content"] = [{"type": "text", "text": f"{name}: "}, *wire["content"]]
