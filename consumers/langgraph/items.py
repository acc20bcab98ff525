"""Items of lists and values: a message as turn and marker, a plain value, or a serializer's bytes."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from turnlog.consumers.langgraph.messages import SHAPES, Fields, Plan, Said, built, containers, copied, fields

Marker = dict[str, Any]
# In every message that is held, in place of its own empty ones: nothing is ever put into them.
_NO_DICT: Fields = {}
_NO_LIST: list[Any] = []


class Codec:
    """A saver's serializer. private: it encrypts, so nothing may be stored in the clear beside it."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self.private = isinstance(serde, EncryptedSerializer)
        self._serde = serde
        self._clear = serde.serde if isinstance(serde, EncryptedSerializer) else serde

    def dumps(self, value: Any) -> tuple[str, bytes]:
        encoding, data = self._serde.dumps_typed(value)
        return encoding, bytes(data)

    def loads(self, encoding: str, data: bytes) -> Any:
        return self._serde.loads_typed((encoding, data))

    def fingerprint(self, value: Any) -> tuple[str, bytes]:
        """Equal for equal values, which bytes of a cipher are not."""
        encoding, data = self._clear.dumps_typed(value)
        return encoding, bytes(data)


class Item(Protocol):
    @property
    def marker(self) -> Marker: ...

    def matches(self, value: Any, codec: Codec) -> bool:
        """Whether the value is still what is stored."""
        ...

    def make(self, codec: Codec) -> Any:
        """A value of the caller's own: changes to it reach nothing else."""
        ...


_plan = cache(Plan)  # one for all messages alike


class MessageItem:
    """A message that its turn and its marker make again exactly. Its fields are put together when it is compared."""

    __slots__ = ("_own", "_plan", "_turn", "marker")

    def __init__(self, marker: Marker, of_turn: Said, own: Fields | None = None) -> None:
        """own: the message's fields, where they are at hand; then what the turn says is not needed."""
        self.marker, self._turn, self._own = marker, of_turn, own
        if own is not None:
            self._hold(own)

    @property
    def cls(self) -> type[BaseMessage]:
        return SHAPES[self.marker["kind"]].cls

    @staticmethod
    def made(items: Iterable["MessageItem"]) -> list[BaseMessage]:
        """As make() of each; what messages of text alone have, as most are, is made together."""
        classes, owns = list[type[BaseMessage]](), list[Fields]()
        of_text: dict[str, list[Fields]] = {kind: [] for kind in SHAPES}
        for item in items:
            marker = item.marker
            kind = marker["kind"]
            shape = SHAPES[kind]
            if type(item._turn) is str and "more" not in marker:
                own = shape.defaults.copy()
                own["content"], own["id"] = item._turn, marker.get("id")
                of_text[kind].append(own)
            else:
                own = item.own
            classes.append(shape.cls)
            owns.append(own)
        for kind, together in of_text.items():
            SHAPES[kind].plan.renew(together)
        return built(classes, owns)

    @property
    def held(self) -> tuple[Fields, Plan]:
        """The fields, which are not to be changed, and how a message's own are made of a copy."""
        own = self._own
        if own is None:
            own = self._fields()
            self._hold(own)
        return own, self._plan

    @property
    def own(self) -> Fields:
        """The fields, for a message of the caller's own."""
        if self._own is None:
            return self._fields()
        own = self._own.copy()
        self._plan.renew([own])
        return own

    def matches(self, value: Any, codec: Codec) -> bool:
        return (
            type(value) is self.cls
            and value.__dict__ == self.held[0]
            and not value.__pydantic_extra__
            and not value.__pydantic_private__
        )

    def make(self, codec: Codec) -> Any:
        return built([self.cls], [self.own])[0]

    def _hold(self, own: Fields) -> None:
        named = containers(own)
        dicts, lists = (tuple(name for name in named if own[name] == empty) for empty in (_NO_DICT, _NO_LIST))
        own.update(dict.fromkeys(dicts, _NO_DICT), **dict.fromkeys(lists, _NO_LIST))
        self._own, self._plan = own, _plan(dicts, lists, tuple(name for name in named if own[name]))

    def _fields(self) -> Fields:
        marker = self.marker
        return fields(SHAPES[marker["kind"]], self._turn, marker.get("id"), marker.get("more"))


class SerializedItem:
    """Anything else, whole, as the saver's serializer writes it."""

    __slots__ = ("_data", "_encoding", "_print", "marker")

    def __init__(self, marker: Marker, encoding: str, data: bytes, fingerprint: tuple[str, bytes] | None) -> None:
        self.marker, self._encoding, self._data, self._print = marker, encoding, data, fingerprint

    def matches(self, value: Any, codec: Codec) -> bool:
        if self._print is None:
            self._print = codec.fingerprint(self.make(codec))
        return codec.fingerprint(value) == self._print

    def make(self, codec: Codec) -> Any:
        return codec.loads(self._encoding, self._data)


class PlainItem(NamedTuple):
    """A value that JSON holds as it is."""

    marker: Marker
    value: Any

    def matches(self, value: Any, codec: Codec) -> bool:
        return type(value) is type(self.value) and bool(value == self.value)

    def make(self, codec: Codec) -> Any:
        return self.value


def message_item(turn_id: str, marker: Marker, message: BaseMessage) -> MessageItem:
    own = {name: copied(value) for name, value in message.__dict__.items()}
    return MessageItem({"turn": turn_id, **marker}, {}, own)


def serialized_item(value: Any, codec: Codec, turn_id: str | None = None) -> SerializedItem:
    encoding, data = codec.dumps(value)
    marker: Marker = {"turn": turn_id} if turn_id else {}
    marker |= {"type": encoding, "data": b64encode(data).decode()}
    return SerializedItem(marker, encoding, data, codec.fingerprint(value) if codec.private else (encoding, data))


def value_item(value: Any, codec: Codec) -> Item:
    """For a value that is no message."""
    if not codec.private and is_plain(value):
        return PlainItem({"value": value}, value)
    return serialized_item(value, codec)


def stored_item(marker: Marker, turns: Mapping[str, Said]) -> Item | None:
    """The item a marker names; None when its turn is gone. turns: event id → what it says."""
    if "kind" in marker:
        turn = turns.get(marker["turn"])
        return MessageItem(marker, turn) if turn is not None else None
    if "value" in marker:
        return PlainItem(marker, marker["value"])
    return SerializedItem(marker, marker["type"], b64decode(marker["data"]), None)


def is_plain(value: Any) -> bool:
    """Whether JSONB gives the very value back."""
    if value is None or type(value) is bool or type(value) is int:
        return True
    if type(value) is float:
        text = repr(value)
        return text != "-0.0" and not text.strip("-").replace(".", "", 1).strip("0123456789")
    return type(value) is str and "\x00" not in value and (value.isascii() or _is_unicode(value))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
