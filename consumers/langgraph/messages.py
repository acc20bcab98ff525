"""A LangChain message as a turn of ours and what a turn does not hold, and back, exactly (pure)."""

import copy
import json
from collections import deque
from collections.abc import Sequence, Set
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel

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

T = TypeVar("T")
Fields = dict[str, Any]
Said = str | Fields  # what a turn says: text alone, or as said()
_IMMUTABLE = frozenset({str, type(None), int, float, bool})
# The four slots of a model: its own way to set them looks at every value.
_give_fields = BaseModel.__dict__["__dict__"].__set__
_give_names = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_give_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_give_private = BaseModel.__dict__["__pydantic_private__"].__set__
_new = object.__new__
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
_CHAT_ROLES: dict[str, Role] = {"assistant": "assistant", "system": "system", "tool": "tool"}


class FieldNames(set[str]):
    """The names of a kind's fields, one set for all its messages: nothing that is done to one of them changes it.

    A field of the caller's own is shown by the message, but not counted among those set. What is made of the names, as
    for a message's copy, is a set like any other.
    """

    def _left_alone(self, *_: object) -> None:
        """In place of all that changes a set."""

    add = remove = discard = clear = update = _left_alone
    difference_update = intersection_update = symmetric_difference_update = _left_alone

    def pop(self) -> str:
        raise TypeError("the names of a message's fields are those of all messages; take them from a copy")

    def copy(self) -> set[str]:
        return set(self)

    def __or__(self, other: Set[T]) -> set[str | T]:
        return set(self) | other

    def __and__(self, other: Set[object]) -> set[str]:
        return set(self) & other

    def __sub__(self, other: Set[object]) -> set[str]:
        return {name for name in self if name not in other}

    def __xor__(self, other: Set[T]) -> set[str | T]:
        return set(self) ^ other

    # Whose names are set anew gets a plain set; the types of the standard library ask for the same class there.
    __ior__, __iand__, __isub__, __ixor__ = __or__, __and__, __sub__, __xor__  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[set[str]], tuple[list[str]]]:
        return set, (list(self),)


class Plan(NamedTuple):
    """How copies of messages' fields become their own: what is empty is made anew, what holds something is copied."""

    dicts: tuple[str, ...]
    lists: tuple[str, ...]
    nested: tuple[str, ...] = ()

    def renew(self, owns: Sequence[Fields]) -> None:
        for name in self.dicts:
            for own in owns:
                own[name] = {}
        for name in self.lists:
            for own in owns:
                own[name] = []
        for name in self.nested:
            for own in owns:
                own[name] = copied(own[name])


class Shape(NamedTuple):
    """What the messages of a kind have in common."""

    cls: type[BaseMessage]
    defaults: Fields
    plan: Plan
    names: FieldNames


def _shape(cls: type[BaseMessage]) -> Shape:
    defaults = {
        name: None if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in cls.model_fields.items()
    }
    dicts, lists = (tuple(name for name, value in defaults.items() if type(value) is kind) for kind in (dict, list))
    return Shape(cls, defaults, Plan(dicts, lists), FieldNames(defaults))


SHAPES = {kind: _shape(cls) for kind, cls in KINDS.items()}
_NAMES = {shape.cls: shape.names for shape in SHAPES.values()}


def turn_of(message: BaseMessage) -> TurnRecorded | None:
    """The turn that says what the message says; None where it says nothing that a transcript could show."""
    role = _role(message)
    content = _content(message.content)
    calls = _calls(message)
    if role is None or not (content or calls or isinstance(message, ToolMessage)):
        return None
    usage = getattr(message, "usage_metadata", None) or {}
    told = message.response_metadata
    return TurnRecorded(
        role=role,
        content=content,
        name=_clean(message.name) if message.name else None,
        tool_calls=calls,
        tool_call_id=_clean(message.tool_call_id) if isinstance(message, ToolMessage) else None,
        model=_text(told.get("model_name") or told.get("model")),
        tokens_in=_count(usage.get("input_tokens")),
        tokens_out=_count(usage.get("output_tokens")),
    )


def said(turn: TurnRecorded) -> Fields:
    """What the turn's row in `messages` says, as it is read back."""
    content = turn.content
    return {
        "content": content if isinstance(content, str) else [b.model_dump(exclude_none=True) for b in content],
        "name": turn.name,
        "tool_calls": [call.model_dump() for call in turn.tool_calls],
        "tool_call_id": turn.tool_call_id,
    }


def fields(shape: Shape, of_turn: Said, message_id: str | None, more: str | None) -> Fields:
    """A message's fields. more: JSON of those that no turn holds, or holds otherwise."""
    found = shape.defaults | {"id": message_id}
    shape.plan.renew([found])
    if isinstance(of_turn, str):
        found["content"] = of_turn
    else:
        content = of_turn["content"]
        found["content"] = content if type(content) is str else [_shown(block) for block in content]
        found["name"] = of_turn["name"]
        if of_turn["tool_calls"] and "tool_calls" in found:
            found["tool_calls"] = [_call(call) for call in of_turn["tool_calls"]]
        if "tool_call_id" in found:
            found["tool_call_id"] = of_turn["tool_call_id"]
    if more is not None:
        found.update(json.loads(more))
    return found


def marked(message: BaseMessage, turn: TurnRecorded) -> Fields | None:
    """What to keep beside the turn, so that both make the message again; None when they cannot.

    kind; id; more: JSON text, for JSONB would lose the order of keys and the difference of 1e3 and 1000.
    """
    kind = KIND_OF.get(type(message))
    if kind is None or message.__pydantic_extra__ or message.__pydantic_private__:
        return None
    own = message.__dict__
    message_id = own["id"] if type(own["id"]) is str and own["id"] == _clean(own["id"]) else None
    rebuilt = fields(SHAPES[kind], said(turn), message_id, None)
    if own.keys() != rebuilt.keys():
        return None
    differing = {name: value for name, value in own.items() if not same(value, rebuilt[name])}
    more = _json(differing) if differing else None
    if differing and (more is None or not same(json.loads(more), differing)):
        return None
    return {"kind": kind} | ({"id": message_id} if message_id is not None else {}) | ({"more": more} if more else {})


def built(classes: Sequence[type[BaseMessage]], owns: Sequence[Fields]) -> list[BaseMessage]:
    """Messages of exactly these fields, all that their kinds have, without validation, which stored fields have passed
    before. The fields are the messages' own from then on. Many at once: one by one takes twice as long."""
    messages = list(map(_new, classes))
    slots = (
        map(_give_fields, messages, owns),
        map(_give_names, messages, map(_NAMES.__getitem__, classes)),
        map(_give_extra, messages, [{} for _ in messages]),
        map(_give_private, messages, repeat(None)),
    )
    for filling in slots:
        deque(filling, 0)
    return messages


def containers(own: Fields) -> tuple[str, ...]:
    """The fields whose values could be changed in place."""
    return tuple(name for name, value in own.items() if type(value) not in _IMMUTABLE)


def copied(value: Any) -> Any:
    """A copy of plain JSON containers; anything else is copied by its own means."""
    kind = type(value)
    if kind is dict:
        return {key: item if type(item) is str else copied(item) for key, item in value.items()}
    if kind is list:
        return [item if type(item) is str else copied(item) for item in value]
    return value if kind in _IMMUTABLE else copy.deepcopy(value)


def same(one: Any, other: Any) -> bool:
    """Equal in types too: 1, 1.0 and True are three values, and a tuple is no list."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if type(one) is float else bool(one == other)


def _role(message: BaseMessage) -> Role | None:
    if isinstance(message, RemoveMessage):
        return None
    if isinstance(message, ChatMessage):
        return _CHAT_ROLES.get(message.role, "user")
    return next((role for cls, role in _ROLES if isinstance(message, cls)), None)


def _content(content: Any) -> Content:
    if isinstance(content, str):
        return _clean(content)
    blocks = [block for part in content for block in _block(part)]
    return tuple(blocks)


def _block(part: Any) -> list[Block]:
    """The part as a block of ours; [] for what a transcript cannot show."""
    if isinstance(part, str):
        return [TextBlock(text=_clean(part))]
    match part:
        case {"type": "text", "text": str(text)}:
            return [TextBlock(text=_clean(text))]
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return [ImageBlock(url=_clean(url))]
        case {"type": "image", "url": str(url)}:
            return [ImageBlock(url=_clean(url))]
        case {"type": "reasoning", "reasoning": str(thinking)}:
            return [ThinkingBlock(thinking=_clean(thinking))]
        case {"type": "thinking", "thinking": str(thinking)}:
            return [ThinkingBlock(thinking=_clean(thinking), signature=_text(part.get("signature")))]
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            return [ToolUseBlock(id=_clean(call_id), name=_clean(name))]
        case {"text": str(text)}:
            return [TextBlock(text=_clean(text))]
    return []


def _shown(block: Fields) -> Fields:
    """A block of a turn as LangChain writes it, for a message of its own."""
    if block["type"] == "image":
        return {"type": "image_url", "image_url": {"url": block["url"]}}
    return block.copy()


def _calls(message: BaseMessage) -> tuple[ToolCall, ...]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return tuple(
        ToolCall(id=_clean(call.get("id") or ""), name=_clean(call["name"]), arguments=_arguments(call["args"]))
        for call in calls
    )


def _call(call: Fields) -> Fields:
    return {"name": call["name"], "args": json.loads(call["arguments"]), "id": call["id"], "type": "tool_call"}


def _arguments(value: Any) -> str:
    """Chinese as it is read; only what holds halves of characters is escaped."""
    escaped = _json(value) or "{}"
    text = json.dumps(json.loads(escaped), ensure_ascii=False, separators=(",", ":"))
    return text if text == _clean(text) else escaped


def _json(value: Any) -> str | None:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None


def _clean(text: str) -> str:
    """Without what Postgres cannot store: NUL, and halves of characters."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _text(value: Any) -> str | None:
    return _clean(value) if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
