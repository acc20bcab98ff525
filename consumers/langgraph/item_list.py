"""The items of a list, its messages compared and made all at once: that takes half of the time of one by one."""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from langchain_core.messages import BaseMessage

from turnlog.consumers.langgraph.items import Codec, Item, MessageItem
from turnlog.consumers.langgraph.messages import Fields, Plan, built

_fields_of = attrgetter("__dict__")
_extra_of = attrgetter("__pydantic_extra__")
_private_of = attrgetter("__pydantic_private__")
MAX_AHEAD = 2_000  # messages that are made before anybody asks


class ItemList(list[Item]):
    """A list that is only ever added to at its end, so that what was noted of its items stays true.

    Noted of the messages that it begins with: their classes and fields, side by side, and where those of each plan are;
    of all items: where those without an id are. Messages may be made before anybody asks: nobody else has those yet.
    """

    __slots__ = ("_ahead", "_classes", "_nameless", "_owns", "_places", "_seen")

    def __init__(self, items: Iterable[Item] = ()) -> None:
        super().__init__(items)
        self._ahead: list[Any] = []
        self._classes: list[type[BaseMessage]] = []
        self._owns: list[Fields] = []
        self._places: dict[Plan, list[int]] = {}
        self._nameless: list[int] = []
        self._seen = 0

    def begins(self, value: Sequence[Any]) -> bool:
        """Whether all items are messages, and the value begins with them. False says nothing of fewer."""
        self._note()
        count, begin = len(self), value[: len(self)]
        return (
            len(self._classes) == len(begin) == count
            and self._classes == list(map(type, begin))
            and self._owns == list(map(_fields_of, begin))
            and not any(map(_extra_of, begin))
            and not any(map(_private_of, begin))
        )

    def make(self, count: int, codec: Codec) -> list[Any]:
        """The first `count` values, of the caller's own."""
        ahead, self._ahead = self._ahead[:count], []
        return ahead + self._made(len(ahead), count, codec)

    def make_ahead(self, codec: Codec) -> bool:
        """Makes what the next make() gives out; whether there was something to make. Of messages alone, and of a list
        that is written: one that was never compared is only read."""
        self._note_further()
        done = len(self._ahead)
        if not done < len(self._classes) == len(self) <= MAX_AHEAD:
            return False
        self._ahead += self._made(done, len(self), codec)
        return True

    def drop_ahead(self) -> None:
        self._ahead = []

    def _made(self, first: int, end: int, codec: Codec) -> list[Any]:
        self._note_further()
        if len(self._classes) >= end:
            copies = list(map(dict.copy, self._owns[first:end]))
            for plan, places in self._places.items():
                plan.renew([copies[at - first] for at in places if first <= at < end])
            return built(self._classes[first:end], copies)
        items = self[first:end]
        messages = [item for item in items if type(item) is MessageItem]
        if len(messages) < len(items):
            return [item.make(codec) for item in items]
        return MessageItem.made(messages)

    def nameless(self, values: Sequence[Any]) -> Iterator[tuple[Item, Any]]:
        """The items without an id, each with its value. values: those made of the first items."""
        new = self[self._seen :]
        self._nameless += [at for at, item in enumerate(new, self._seen) if "id" not in item.marker]
        self._seen = len(self)
        return ((self[at], values[at]) for at in self._nameless if at < len(values))

    def _note_further(self) -> None:
        if self._classes:  # else it is only read, and was never compared
            self._note()

    def _note(self) -> None:
        for item in self[len(self._classes) :]:
            if type(item) is not MessageItem:
                return
            own, plan = item.held
            self._places.setdefault(plan, []).append(len(self._owns))
            self._classes.append(item.cls)
            self._owns.append(own)
