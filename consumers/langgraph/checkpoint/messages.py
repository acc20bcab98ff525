"""Converts a LangChain message to a turn and the fields that a turn lacks, and back, exactly (pure)."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)
from pydantic_core import to_json

from turnlog.agent.conversations.blocks import as_document
from turnlog.events.contracts import (
    Block,
    Content,
    ImageBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolUseBlock,
    TurnRecorded,
)
from turnlog.events.errors import InvalidEvent
from turnlog.events.texts import storable
from turnlog.projectors.models.conversation.message import Message

_EPOCH = datetime.fromtimestamp(0, UTC)
Fields = dict[str, Any]
Said = str | Fields  # the content of a turn: its text if it has nothing else, otherwise the form of said()
KINDS: dict[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}
KIND_OF = {cls: kind for kind, cls in KINDS.items()}
_ROLES: tuple[tuple[type[BaseMessage], Role], ...] = (
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (SystemMessage, "system"),
    (ToolMessage, "tool"),
    (FunctionMessage, "tool"),
)
# Any other role of a ChatMessage is a speaker's name.
_CHAT_ROLES: dict[str, Role] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}


# All fields of these messages count as set, as in messages that LangGraph's own savers read.
_BLANK: dict[str, BaseMessage] = {
    kind: cls(
        **{
            name: "" if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in cls.model_fields.items()
        }
    )
    for kind, cls in KINDS.items()
}
_CONTAINERS = {
    kind: tuple((name, type(value)) for name, value in vars(blank).items() if type(value) in (dict, list))
    for kind, blank in _BLANK.items()
}


def coerced(value: Any) -> BaseMessage | None:
    """Returns the message that LangChain makes from a text, a (role, content) pair or a dict; None if it cannot make
    one.
    """
    if isinstance(value, BaseMessage):
        return value
    if not isinstance(value, str | tuple | list | dict):
        return None
    try:
        return convert_to_messages([value])[0]
    except (ValueError, TypeError, KeyError, NotImplementedError):
        return None


def turn_of(message: BaseMessage) -> TurnRecorded | None:
    """Returns the turn with the content of the message; None if the message has no content for a transcript."""
    role = _role(message)
    content = _content(message.content)
    calls = _calls(message)
    if role is None or not (content or calls or isinstance(message, ToolMessage)):
        return None
    usage = getattr(message, "usage_metadata", None) or {}
    name = message.name
    if isinstance(message, ChatMessage) and message.role not in _CHAT_ROLES:
        name = message.role
    metadata = message.response_metadata
    return TurnRecorded(
        role=role,
        content=content,
        name=storable(name) if name else None,
        tool_calls=calls,
        tool_call_id=storable(message.tool_call_id) if isinstance(message, ToolMessage) else None,
        model=_text(metadata.get("model_name") or metadata.get("model")),
        tokens_in=_count(usage.get("input_tokens")),
        tokens_out=_count(usage.get("output_tokens")),
        origin="program" if role == "user" and _is_made_by_program(message) else None,
    )


def _is_made_by_program(message: BaseMessage) -> bool:
    """Returns whether a program made the message. The middleware of LangChain and deepagents names itself in
    `lc_source`, for example for a summary of older messages; agent-chat-ui marks messages that no person wrote by their
    id; an `example` shows a model what to do."""
    has_source = any(fields.get("lc_source") for fields in (message.additional_kwargs, message.response_metadata))
    return has_source or getattr(message, "example", False) or (message.id or "").startswith("do-not-render-")


def said(turn: TurnRecorded) -> Fields:
    """Returns the turn's columns in `messages`, in the form in which they are read."""
    content = turn.content
    return {
        "content": content if isinstance(content, str) else [b.model_dump(exclude_none=True) for b in content],
        "name": turn.name,
        "tool_calls": [call.model_dump() for call in turn.tool_calls],
        "tool_call_id": turn.tool_call_id,
    }


def message_of(kind: str, of_turn: Said, message_id: str | None, more: str | None) -> BaseMessage:
    """Returns the message. more: JSON of the fields that the turn lacks or holds in another form.

    Skips validation, which these fields passed before they were stored.
    """
    fields: Fields = {name: empty() for name, empty in _CONTAINERS[kind]}
    fields["id"] = message_id
    if isinstance(of_turn, str):
        fields["content"] = of_turn
    else:
        fields |= _fields_of(kind, of_turn)
    if more is not None:
        fields |= read_json(more)
    return _BLANK[kind].model_copy(update=fields)


def _fields_of(kind: str, of_turn: Fields) -> Fields:
    content = of_turn["content"]
    fields = {"content": content if type(content) is str else [_shown(block) for block in content]}
    fields["name"] = of_turn["name"]
    if kind == "ai" and of_turn["tool_calls"]:
        fields["tool_calls"] = [
            {"name": call["name"], "args": read_json(call["arguments"]), "id": call["id"], "type": "tool_call"}
            for call in of_turn["tool_calls"]
        ]
    if kind == "tool":
        fields["tool_call_id"] = of_turn["tool_call_id"]
    return fields


def marked(message: BaseMessage, turn: TurnRecorded) -> Fields | None:
    """Returns the fields to store beside the turn, so that both together restore the message; None if they cannot.

    They are kind, id and more, which is JSON text, because JSONB would lose the order of keys and the difference
    between 1e3 and 1000.
    """
    kind = KIND_OF.get(type(message))
    if kind is None:
        return None
    own, of_turn = vars(message), said(turn)
    message_id = own["id"] if type(own["id"]) is str and own["id"] == storable(own["id"]) else None
    made = message_of(kind, of_turn, message_id, None)
    differing = {name: value for name, value in own.items() if not same(value, vars(made).get(name))}
    more = _json(differing) if differing else None
    if more is not None:
        made = message_of(kind, of_turn, message_id, more)
    if made != message or any(not same(value, vars(made)[name]) for name, value in own.items()):
        return None
    return {"kind": kind} | ({"id": message_id} if message_id is not None else {}) | ({"more": more} if more else {})


def same(value: Any, other: Any) -> bool:
    """Returns whether two values are equal in value and type: 1, 1.0 and True differ, as do a tuple and a list."""
    if type(value) is not type(other):
        return False
    if type(value) is dict:
        return list(value) == list(other) and all(same(value[key], other[key]) for key in value)
    if type(value) in (list, tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return repr(value) == repr(other) if type(value) is float else bool(value == other)


def _role(message: BaseMessage) -> Role | None:
    if isinstance(message, RemoveMessage):
        return None
    if isinstance(message, ChatMessage):
        return _CHAT_ROLES.get(message.role, "user")
    return next((role for cls, role in _ROLES if isinstance(message, cls)), None)


def _content(content: Any) -> Content:
    if isinstance(content, str):
        return str(storable(content))
    blocks = [block for part in content for block in _block(part)]
    return tuple(blocks)


def _block(part: Any) -> list[Block]:
    """Returns the part as a block of a turn; [] if a transcript cannot show it."""
    if isinstance(part, str):
        return [TextBlock(text=storable(part))]
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return [TextBlock(text=storable(text))]
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return [ImageBlock(url=storable(url))]
        case {"type": "image", "url": str(url)}:
            return [ImageBlock(url=storable(url))]
        case {"type": "reasoning", "reasoning": str(thinking)}:
            return [ThinkingBlock(thinking=storable(thinking))]
        case {"type": "thinking", "thinking": str(thinking)}:
            return [ThinkingBlock(thinking=storable(thinking), signature=_text(part.get("signature")))]
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            return [ToolUseBlock(id=storable(call_id), name=storable(name))]
        case {"type": str(), "text": str(text)}:  # such as `text-plain`, an attached file
            return [TextBlock(text=as_document(storable(text)))]
        case {"text": str(text)}:
            return [TextBlock(text=storable(text))]
    return []


def _shown(block: Fields) -> Fields:
    """Returns a block of a turn in LangChain's form, as part of a LangChain message."""
    if block["type"] == "image":
        return {"type": "image_url", "image_url": {"url": block["url"]}}
    return block.copy()


def _calls(message: BaseMessage) -> tuple[ToolCall, ...]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return tuple(
        ToolCall(id=storable(call.get("id") or ""), name=storable(call["name"]), arguments=_arguments(call["args"]))
        for call in calls
    )


def _arguments(value: Any) -> str:
    """Returns JSON with unescaped Chinese; text with lone surrogates is escaped."""
    escaped = _json(value) or "{}"
    text = json.dumps(json.loads(escaped), ensure_ascii=False, separators=(",", ":"))
    return text if text == storable(text) else escaped


def read_json(text: str | bytes) -> Any:
    """Parses JSON in the form that this module writes, with lone surrogates. Raises InvalidEvent for invalid JSON in a
    foreign event."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"a value of this checkpoint cannot be read as JSON: {error}") from None


def _json(value: Any) -> str | None:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None


def _text(value: Any) -> str | None:
    return storable(value) if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def to_messages(messages: Sequence[BaseMessage], conversation_id: str) -> list[Message]:
    """Returns the messages with content, in the form from which a context is built; seq: the index in the list, from
    1.
    """
    converted = []
    for seq, message in enumerate(messages, 1):
        if (turn := turn_of(message)) is not None:
            # Token counts are cached by event id, and the content of a message may change under the same id.
            identity = uuid5(NAMESPACE_OID, f"{conversation_id}/{message.id}/{to_json(turn).decode()}")
            origin = turn.of(None).origin or "person"
            converted.append(Message(seq, identity, turn.role, time=_EPOCH, origin=origin, **said(turn)))
    return converted
