"""Values of channels and writes in their stored form and in memory, where messages are items."""

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Overwrite, Send

from turnlog.consumers.langgraph.checkpoint.items import Codec, Item, Marker, stored_item
from turnlog.consumers.langgraph.checkpoint.messages import Said, coerced, read_json
from turnlog.consumers.langgraph.checkpoint.recorded import RecordedMessages, Turns

LIST = "turnlog.list"  # {"list": id, "count": n}
REFS = "turnlog.refs"  # {"items": markers, "type", "data": the serialized value with placeholders for them}
PLACE = "__turnlog_item__"
MAX_NODES = 5_000


class Typed(NamedTuple):
    """A value as bytes of the serializer, without references to messages."""

    encoding: str
    data: bytes

    def stored(self) -> "Typed":
        return self

    def load(self, codec: Codec, recorded: RecordedMessages | None) -> Any:
        return codec.loads(self.encoding, self.data)


class Refs(NamedTuple):
    """A value that contains messages."""

    items: Sequence[Item | None]
    encoding: str
    data: bytes

    def stored(self) -> Typed:
        parts = {
            "items": [item.marker if item is not None else {"value": None} for item in self.items],
            "type": self.encoding,
            "data": b64encode(self.data).decode(),
        }
        return Typed(REFS, json.dumps(parts, separators=(",", ":")).encode())

    def load(self, codec: Codec, recorded: RecordedMessages | None) -> Any:
        made = [... if item is None else item.make(codec) for item in self.items]
        if recorded is not None:
            recorded.made(zip(self.items, made, strict=True))
        value = put_back(codec.loads(self.encoding, self.data), made)
        return None if value is ... else value


class Listed(NamedTuple):
    """The first `length` items of a list."""

    list_id: str
    length: int
    items: Sequence[Item]

    def stored(self) -> Typed:
        return Typed(LIST, json.dumps({"list": self.list_id, "count": self.length}).encode())

    def load(self, codec: Codec, recorded: RecordedMessages | None) -> Any:
        items = self.items[: self.length]
        values = [item.make(codec) for item in items]
        if recorded is not None:
            recorded.made(zip(items, values, strict=True))
        return values

    def without(self, turns: Collection[str]) -> "Listed":
        """Returns the list without these turns, for readers only; it must not be stored. turns: event ids."""
        items = [item for item in self.items[: self.length] if item.marker.get("turn") not in turns]
        return self._replace(length=len(items), items=items)


Value = Typed | Refs | Listed


def named_value(value: Any, recorded: RecordedMessages, codec: Codec, turns: Turns, *, coerces: bool = False) -> Value:
    """Returns the value with references to its messages; new messages are added to `turns`.

    coerces: whether text, pairs and dicts of which LangChain makes messages count as messages. Raises the serializer's
    error for a value it cannot write.
    """
    without, messages = (value, []) if codec.private else taken_out(value, coerces)
    if not messages:
        return Typed(*codec.dumps(value))
    items = [recorded.item(message, codec, turns, coerces=coerces) for message in messages]
    return Refs(items, *codec.dumps(without))


def lists_in(values: Iterable[Typed]) -> list[tuple[str, int]]:
    """Returns (list, count) of every list that the values refer to."""
    references = [read_json(value.data) for value in values if value.encoding == LIST]
    return [(reference["list"], int(reference["count"])) for reference in references]


def markers_in(values: Iterable[Typed]) -> list[Marker]:
    return [marker for value in values if value.encoding == REFS for marker in read_json(value.data)["items"]]


def resolved(value: Typed, lists: Mapping[str, Sequence[Item]], turns: Mapping[str, Said]) -> Value:
    """Returns the value with its lists and turns. lists: list id → its items, at least as many as the value refers
    to.
    """
    if value.encoding == LIST:
        parts = read_json(value.data)
        return Listed(parts["list"], int(parts["count"]), lists.get(parts["list"], ()))
    if value.encoding == REFS:
        parts = read_json(value.data)
        return Refs([stored_item(m, turns) for m in parts["items"]], parts["type"], b64decode(parts["data"]))
    return value


class _TooMany(Exception):
    """The value has more than MAX_NODES parts, or a dict that looks like a placeholder."""


def taken_out(value: Any, coerces: bool = False) -> tuple[Any, list[Any]]:
    """Returns the value with a placeholder for each message, and the messages. Walks plain containers and LangGraph's
    own.

    coerces: True also takes out the value, or each item of a list, if LangChain can make a message of it. Takes out no
    message if the value has too many or too deeply nested parts.
    """
    messages: list[Any] = []
    left = MAX_NODES

    def walk(part: Any, coerces: bool = False) -> Any:
        nonlocal left
        left -= 1
        kind = type(part)
        if left < 0 or (kind is dict and PLACE in part):
            raise _TooMany
        if isinstance(part, BaseMessage) or (coerces and coerced(part) is not None):
            messages.append(part)
            return {PLACE: len(messages) - 1}
        if kind is dict:
            return {key: walk(item) for key, item in part.items()}
        if kind is list or kind is tuple:
            return kind([walk(item) for item in part])
        if kind is Overwrite or kind is _DeltaSnapshot:
            return kind(listed(part.value, coerces))
        return _like(part, walk(part.arg)) if kind is Send else part

    def listed(part: Any, coerces: bool) -> Any:
        return [walk(item, coerces) for item in part] if type(part) is list else walk(part, coerces)

    try:
        return listed(value, coerces), messages
    except (_TooMany, RecursionError):
        return value, []


def put_back(value: Any, items: list[Any]) -> Any:
    """Returns the value with its items instead of the placeholders; the reverse of taken_out().

    items: the item for each placeholder number. An item whose turn was deleted is `...`, and is left out of its dict,
    list or tuple.
    """
    kind = type(value)
    if kind is dict:
        if len(value) == 1 and PLACE in value:
            return items[value[PLACE]]
        whole = {key: put_back(item, items) for key, item in value.items()}
        return {key: item for key, item in whole.items() if item is not ...}
    if kind is list or kind is tuple:
        return kind([item for item in (put_back(part, items) for part in value) if item is not ...])
    if kind is Overwrite or kind is _DeltaSnapshot:
        return kind(put_back(value.value, items))
    return _like(value, put_back(value.arg, items)) if kind is Send else value


def _like(send: Send, arg: Any) -> Send:
    timeout = getattr(send, "timeout", None)
    return Send(send.node, arg) if timeout is None else Send(send.node, arg, timeout=timeout)
