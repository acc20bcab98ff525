"""Messages become markers: each is recorded once as a turn, and everywhere else it is named."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import Send
from uuid_utils.compat import uuid7

from turnlog.consumers.langgraph.items import Codec, Item, MessageItem, message_item, serialized_item, value_item
from turnlog.consumers.langgraph.messages import marked, said, turn_of
from turnlog.events.contracts import TurnRecorded

PLACE = "__turnlog_item__"
MAX_NODES = 5_000


@dataclass(slots=True)
class Turns:
    """New turns of one write, in order. record: False in child namespaces, which name turns but record none."""

    record: bool
    new: list[tuple[str, TurnRecorded]] = field(default_factory=list)


class Interner:
    """What one thread's messages are stored as, by message id, or by object where a message has none."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[Item]] = {}
        self._adopted: list[Iterable[Item]] = []
        self._by_object: dict[int, tuple[weakref.ref[BaseMessage], Item]] = {}

    def item(self, value: Any, codec: Codec, turns: Turns) -> Item:
        if not isinstance(value, BaseMessage):
            return value_item(value, codec)
        if codec.private:
            return serialized_item(value, codec)
        return self._message(value, codec, turns)

    def adopt(self, items: Iterable[Item]) -> None:
        """Items read from the tables: their turns are not recorded again."""
        self._adopted.append(items)

    def made(self, pairs: Iterable[tuple[Item | None, Any]]) -> None:
        """These values were given out for the items; a message without an id is only known by itself."""
        for item, value in pairs:
            if item is not None and "id" not in item.marker and isinstance(value, BaseMessage) and value.id is None:
                self._remember(value, item)

    def _message(self, message: BaseMessage, codec: Codec, turns: Turns) -> Item:
        self._index()
        known = self._known(message)
        turn = turn_of(message)
        for item in reversed(known):
            if item.matches(message, codec) and ("turn" in item.marker or not turns.record or turn is None):
                return item
        turn_id = self._turn_id(known, turn, codec)
        if turn_id is None and turn is not None and turns.record:
            turn_id = str(uuid7())
            turns.new.append((turn_id, turn))
        item = _made_item(message, turn, turn_id, codec)
        self._remember(message, item)
        return item

    def _index(self) -> None:
        """What was read is looked at when something is written."""
        adopted, self._adopted = self._adopted, []
        for items in adopted:
            for item in items:
                if (message_id := item.marker.get("id")) is not None:
                    self._note(self._by_id.setdefault(message_id, []), item)

    def _known(self, message: BaseMessage) -> list[Item]:
        """By its id; a reducer may have given one to a message that was recorded without."""
        if message.id is not None and message.id in self._by_id:
            return self._by_id[message.id]
        found = self._by_object.get(id(message))
        return [found[1]] if found is not None and found[0]() is message else []

    @staticmethod
    def _turn_id(known: list[Item], turn: TurnRecorded | None, codec: Codec) -> str | None:
        """The turn that says the same, under another marker."""
        if turn is None:
            return None
        for item in reversed(known):
            other = turn_of(item.make(codec)) if "turn" in item.marker else None
            if other is not None and (other.role, said(other)) == (turn.role, said(turn)):
                return str(item.marker["turn"])
        return None

    def _remember(self, message: BaseMessage, item: Item) -> None:
        if message.id is not None:
            self._note(self._by_id.setdefault(message.id, []), item)
            return
        key = id(message)
        self._by_object[key] = (weakref.ref(message, lambda _: self._by_object.pop(key, None)), item)

    @staticmethod
    def _note(known: list[Item], item: Item) -> None:
        if all(item.marker != other.marker for other in known):
            known.append(item)


def _made_item(message: BaseMessage, turn: TurnRecorded | None, turn_id: str | None, codec: Codec) -> Item:
    marker = marked(message, turn) if turn is not None and turn_id is not None else None
    if marker is None or turn_id is None:
        return serialized_item(message, codec, turn_id)
    made: MessageItem = message_item(turn_id, marker, message)
    return made


class TooMany(Exception):
    """The value is too large, or too strange, to look for messages in it."""


def taken_out(value: Any, to_item: Any) -> tuple[Any, list[Item]]:
    """The value with a place where each message was, and the items of those places. Walks plain containers only."""
    found: list[Item] = []
    left = MAX_NODES

    def walk(part: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooMany
        if isinstance(part, BaseMessage):
            found.append(to_item(part))
            return {PLACE: len(found) - 1}
        kind = type(part)
        if kind is dict:
            if PLACE in part:
                raise TooMany
            return {key: walk(item) for key, item in part.items()}
        if kind is list or kind is tuple:
            return kind([walk(item) for item in part])
        return _like(part, walk(part.arg)) if kind is Send else part

    return walk(value), found


def has_message(value: Any) -> bool:
    """Whether taken_out() would find one; looks no further than it does."""
    left, waiting = MAX_NODES, [value]
    while waiting:
        part = waiting.pop()
        left -= 1
        if left < 0:
            return False
        kind = type(part)
        if kind is str:
            continue
        if isinstance(part, BaseMessage):
            return True
        if kind is dict:
            waiting.extend(part.values())
        elif kind is list or kind is tuple:
            waiting.extend(part)
        elif kind is Send:
            waiting.append(part.arg)
    return False


def put_back(value: Any, items: list[Any]) -> Any:
    """taken_out() the other way. items: what the places stand for; ... for one that is gone, which its list loses."""
    kind = type(value)
    if kind is dict:
        if len(value) == 1 and PLACE in value:
            return items[value[PLACE]]
        whole = {key: put_back(item, items) for key, item in value.items()}
        return {key: item for key, item in whole.items() if item is not ...}
    if kind is list or kind is tuple:
        return kind([item for item in (put_back(part, items) for part in value) if item is not ...])
    return _like(value, put_back(value.arg, items)) if kind is Send else value


def _like(send: Send, arg: Any) -> Send:
    timeout = getattr(send, "timeout", None)
    return Send(send.node, arg) if timeout is None else Send(send.node, arg, timeout=timeout)
