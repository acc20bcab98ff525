"""Tracks which messages of a thread are on the log: each is recorded once as a turn, and referred to by id
elsewhere.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage
from uuid_utils.compat import uuid7

from turnlog.consumers.langgraph.checkpoint.items import Codec, Item, message_item, serialized_item, value_item
from turnlog.consumers.langgraph.checkpoint.messages import coerced, said, turn_of
from turnlog.events.contracts import TurnRecorded


@dataclass(slots=True)
class Turns:
    """New turns of one write, in order. record: False in child namespaces, which refer to turns but record none.

    in_checkpoint: False in writes of tasks, whose messages appear again in the next checkpoint or snapshot.
    """

    record: bool
    in_checkpoint: bool = False
    new: list[tuple[str, TurnRecorded]] = field(default_factory=list)


class RecordedMessages:
    """The stored items of a thread's messages, by message id, or by object if a message has no id.

    _raw: text, pairs and dicts without an id that tasks wrote, in order, by their turn's event id. LangGraph later
    makes messages of them, so in a checkpoint they are recognised by their content.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, list[Item]] = {}
        self._by_object: dict[int, tuple[weakref.ref[BaseMessage], Item]] = {}
        self._raw: dict[str, Item] = {}

    def item(self, value: Any, codec: Codec, turns: Turns, *, coerces: bool = False) -> Item:
        """Returns the item of a value. coerces: True if text, pairs and dicts of which LangChain makes messages count
        as messages.
        """
        message = coerced(value) if isinstance(value, BaseMessage) or (coerces and turns.record) else None
        if message is None:
            return value_item(value, codec)
        if codec.private:
            return serialized_item(value, codec)
        return self._message(value, message, codec, turns)

    @property
    def expects_messages(self) -> bool:
        """True if tasks wrote text, pairs or dicts of which LangGraph will make messages in the next checkpoint or
        snapshot."""
        return bool(self._raw)

    def adopt(self, items: Iterable[Item], *, written: bool) -> None:
        """Remembers items read from the tables, so that their turns are not recorded again. written: True if they come
        from tasks' writes."""
        for item in items:
            if (message_id := item.marker.get("id")) is not None:
                self._note(message_id, item)
            elif written and "turn" in item.marker and "kind" not in item.marker:
                self._raw[item.marker["turn"]] = item

    def made(self, pairs: Iterable[tuple[Item | None, Any]]) -> None:
        """Remembers which message object a reader got for each item, so that a message without an id is recognised by
        its object."""
        for item, value in pairs:
            if item is not None and "id" not in item.marker and isinstance(value, BaseMessage) and value.id is None:
                self._remember(value, item)

    def _message(self, value: Any, message: BaseMessage, codec: Codec, turns: Turns) -> Item:
        """Returns the item of a message. value: the message, or the value of which LangChain makes it."""
        known = self._known(message)
        turn = turn_of(message)
        for item in reversed(known):
            if item.matches(value, codec) and ("turn" in item.marker or not turns.record or turn is None):
                return item
        turn_id = self._turn_id(reversed(known), turn, codec)
        if turn_id is None and turns.in_checkpoint:
            turn_id = self._turn_id(self._raw.values(), turn, codec)
            self._raw.pop(turn_id or "", None)
        if turn_id is None and turn is not None and turns.record:
            turn_id = str(uuid7())
            turns.new.append((turn_id, turn))
        if value is message:
            made = message_item(message, turn, turn_id) if turn is not None and turn_id is not None else None
            item = made or serialized_item(message, codec, turn_id)
        else:
            item = serialized_item(value, codec, turn_id, message.id)
        if value is message or message.id is not None:
            self._remember(message, item)
        elif turn_id is not None and not turns.in_checkpoint:
            self._raw[turn_id] = item
        return item

    def _known(self, message: BaseMessage) -> list[Item]:
        """Returns the items with the message's id. A message may have been recorded without an id, and got one from a
        reducer later."""
        if message.id is not None and message.id in self._by_id:
            return self._by_id[message.id]
        entry = self._by_object.get(id(message))
        return [entry[1]] if entry is not None and entry[0]() is message else []

    @staticmethod
    def _turn_id(known: Iterable[Item], turn: TurnRecorded | None, codec: Codec) -> str | None:
        """Returns the event id of the turn of a known item with the same role and content; None if there is none."""
        if turn is None:
            return None
        for item in known:
            message = coerced(item.make(codec)) if "turn" in item.marker else None
            other = turn_of(message) if message is not None else None
            if other is not None and (other.role, said(other)) == (turn.role, said(turn)):
                return str(item.marker["turn"])
        return None

    def _remember(self, message: BaseMessage, item: Item) -> None:
        if message.id is not None:
            self._note(message.id, item)
            return
        key = id(message)
        self._by_object[key] = (weakref.ref(message, lambda _: self._by_object.pop(key, None)), item)

    def _note(self, message_id: str, item: Item) -> None:
        known = self._by_id.setdefault(message_id, [])
        if all(item.marker != other.marker for other in known):
            known.append(item)
