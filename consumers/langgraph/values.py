"""Values of channels and writes: as they are stored, and as they are held in memory with their messages named."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from turnlog.consumers.langgraph.interning import Interner, TooMany, Turns, has_message, put_back, taken_out
from turnlog.consumers.langgraph.item_list import ItemList
from turnlog.consumers.langgraph.items import Codec, Item, Marker, stored_item
from turnlog.consumers.langgraph.messages import Said

LIST = "turnlog.list"  # {"list": id, "count": n}
REFS = "turnlog.refs"  # {"items": markers, "type", "data": the value with places for them, by the serializer}


class Typed(NamedTuple):
    """By the serializer alone."""

    encoding: str
    data: bytes

    def stored(self) -> "Typed":
        return self

    def load(self, codec: Codec, interner: Interner | None) -> Any:
        return codec.loads(self.encoding, self.data)


class Refs(NamedTuple):
    """A value in which there are messages."""

    items: Sequence[Item | None]
    encoding: str
    data: bytes

    def stored(self) -> Typed:
        named = {
            "items": [item.marker if item is not None else {"value": None} for item in self.items],
            "type": self.encoding,
            "data": b64encode(self.data).decode(),
        }
        return Typed(REFS, json.dumps(named, separators=(",", ":")).encode())

    def load(self, codec: Codec, interner: Interner | None) -> Any:
        made = [... if item is None else item.make(codec) for item in self.items]
        if interner is not None:
            interner.made(zip(self.items, made, strict=True))
        found = put_back(codec.loads(self.encoding, self.data), made)
        return None if found is ... else found


class Listed(NamedTuple):
    """The first `length` items of a list."""

    list_id: str
    length: int
    items: ItemList

    def stored(self) -> Typed:
        return Typed(LIST, json.dumps({"list": self.list_id, "count": self.length}).encode())

    def load(self, codec: Codec, interner: Interner | None) -> Any:
        found = self.items.make(self.length, codec)
        if interner is not None:
            interner.made(self.items.nameless(found))
        return found


Value = Typed | Refs | Listed


def interned(value: Any, interner: Interner, codec: Codec, turns: Turns) -> Value:
    """Raises what the serializer raises for a value it cannot write."""
    if not codec.private and has_message(value):
        try:
            without, items = taken_out(value, lambda message: interner.item(message, codec, turns))
            return Refs(items, *codec.dumps(without))
        except TooMany:
            pass
    return Typed(*codec.dumps(value))


def lists_in(values: Iterable[Typed]) -> list[tuple[str, int]]:
    """(list, count) of every list that the values name."""
    named = [json.loads(value.data) for value in values if value.encoding == LIST]
    return [(one["list"], int(one["count"])) for one in named]


def markers_in(values: Iterable[Typed]) -> list[Marker]:
    return [marker for value in values if value.encoding == REFS for marker in json.loads(value.data)["items"]]


def resolved(value: Typed, lists: Mapping[str, ItemList], turns: Mapping[str, Said]) -> Value:
    """lists: list id → items of it, at least as many as the value names."""
    if value.encoding == LIST:
        named = json.loads(value.data)
        return Listed(named["list"], int(named["count"]), lists.get(named["list"], ItemList()))
    if value.encoding == REFS:
        named = json.loads(value.data)
        return Refs([stored_item(m, turns) for m in named["items"]], named["type"], b64decode(named["data"]))
    return value
