"""Items of lists and values: a message as a turn and a marker, a plain value, or a serializer's bytes."""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from turnlog.consumers.langgraph.checkpoint.allowed import RUNS_CODE, Allowed, check, own_types
from turnlog.consumers.langgraph.checkpoint.messages import Said, marked, message_of, said
from turnlog.events.contracts import TurnRecorded

Marker = dict[str, Any]
SIGNED = "turnlog.signed."  # prefix of the serializer's encoding; the bytes then begin with their signature
SIGNATURE_BYTES = 32


class Codec:
    """A saver's serializer. private: True if it encrypts; then all values are stored only encrypted.

    sign: signs unencrypted values whose types are not on the allow-list; None refuses such values. dumps and loads
    raise TypeNotAllowed for unencrypted values with a type that cannot be read.
    """

    def __init__(
        self, serde: SerializerProtocol, allowed: Allowed = frozenset(), sign: Callable[[bytes], bytes] | None = None
    ) -> None:
        self.private = isinstance(serde, EncryptedSerializer)
        self._serde, self._allowed, self._sign = serde, allowed, sign
        self._clear = serde.serde if isinstance(serde, EncryptedSerializer) else serde

    def dumps(self, value: Any) -> tuple[str, bytes]:
        encoding, data = self._serde.dumps_typed(value)
        if isinstance(self._clear, JsonPlusSerializer):
            own = own_types(encoding, bytes(data)) - self._allowed
            if self._sign is None:
                check(encoding, bytes(data), self._allowed)
            elif own or encoding in RUNS_CODE:
                return SIGNED + encoding, self._sign(_signed(encoding, data)) + bytes(data)
        return encoding, bytes(data)

    def loads(self, encoding: str, data: bytes) -> Any:
        if encoding.startswith(SIGNED):
            encoding, signature, data = encoding.removeprefix(SIGNED), data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
            if self._sign is not None and hmac.compare_digest(signature, self._sign(_signed(encoding, data))):
                return self._loads_signed(encoding, data)
        if isinstance(self._clear, JsonPlusSerializer):
            check(encoding, data, self._allowed)
        return self._serde.loads_typed((encoding, data))

    def _loads_signed(self, encoding: str, data: bytes) -> Any:
        serde = self._clear
        if isinstance(serde, JsonPlusSerializer):
            serde = serde.with_msgpack_allowlist(own_types(encoding, data))
        return serde.loads_typed((encoding, data))

    def fingerprint(self, value: Any) -> tuple[str, bytes]:
        """Returns a key that is equal for equal values; encrypted bytes of equal values differ."""
        encoding, data = self._clear.dumps_typed(value)
        return encoding, bytes(data)


def _signed(encoding: str, data: bytes) -> bytes:
    return encoding.encode() + b"\0" + data


class Item(Protocol):
    @property
    def marker(self) -> Marker: ...

    def matches(self, value: Any, codec: Codec) -> bool:
        """Returns whether the value still equals the stored one."""
        ...

    def make(self, codec: Codec) -> Any:
        """Returns a new value, so that the caller's changes do not reach other copies."""
        ...


class MessageItem:
    """A message that is restored exactly from its turn and its marker. A copy is kept for comparison with other
    messages.
    """

    __slots__ = ("_made", "_turn", "marker")

    def __init__(self, marker: Marker, of_turn: Said) -> None:
        self.marker, self._turn = marker, of_turn
        self._made: BaseMessage | None = None

    def matches(self, value: Any, codec: Codec) -> bool:
        if self._made is None:
            self._made = self.make(codec)
        return type(value) is type(self._made) and bool(value == self._made)

    def make(self, codec: Codec) -> BaseMessage:
        marker = self.marker
        return message_of(marker["kind"], self._turn, marker.get("id"), marker.get("more"))


class SerializedItem:
    """Any other value, as bytes of the saver's serializer."""

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
    """A value that JSON represents without change."""

    marker: Marker
    value: Any

    def matches(self, value: Any, codec: Codec) -> bool:
        return type(value) is type(self.value) and bool(value == self.value)

    def make(self, codec: Codec) -> Any:
        return self.value


def message_item(message: BaseMessage, turn: TurnRecorded, turn_id: str) -> MessageItem | None:
    """Returns the item of a message; None if turn and marker cannot restore the same message."""
    marker = marked(message, turn)
    return None if marker is None else MessageItem({"turn": turn_id, **marker}, said(turn))


def serialized_item(
    value: Any, codec: Codec, turn_id: str | None = None, message_id: str | None = None
) -> SerializedItem:
    encoding, data = codec.dumps(value)
    marker: Marker = ({"turn": turn_id} if turn_id else {}) | ({"id": message_id} if message_id else {})
    marker |= {"type": encoding, "data": b64encode(data).decode()}
    is_as_serialized = not codec.private and not encoding.startswith(SIGNED)
    return SerializedItem(marker, encoding, data, (encoding, data) if is_as_serialized else codec.fingerprint(value))


def value_item(value: Any, codec: Codec) -> Item:
    """Returns the item of a value other than a message."""
    if not codec.private and is_plain(value):
        return PlainItem({"value": value}, value)
    return serialized_item(value, codec)


def stored_item(marker: Marker, turns: Mapping[str, Said]) -> Item | None:
    """Returns the item that a marker refers to; None if its turn no longer exists. turns: by event id."""
    if "kind" in marker:
        turn = turns.get(marker["turn"])
        return MessageItem(marker, turn) if turn is not None else None
    if "value" in marker:
        return PlainItem(marker, marker["value"])
    return SerializedItem(marker, marker["type"], b64decode(marker["data"]), None)


def is_plain(value: Any) -> bool:
    """Returns whether JSONB returns the same value."""
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
