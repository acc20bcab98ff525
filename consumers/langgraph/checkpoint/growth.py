"""Growing lists: finds the common beginning of a new value and the last one, and makes rows for the rest (pure).

A list is stored as rows of items under a list id. It may begin with the first items of another list, so that a fork or
a second process can continue a list without writing it again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

MAX_BASES = 32  # the longest chain of lists that a read follows; a list with a longer chain is written whole again

Item = TypeVar("Item")


class Row(NamedTuple):
    """A row of a list: its items from index `first` on. base_list, base_count: the list begins with this many items of
    that list; set only in its first row.
    """

    list_id: str
    first: int
    base_list: str | None
    base_count: int
    items: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A list with whose items other lists may begin. base_count: how many of its first items belong to its base."""

    list_id: str
    base: "Source | None" = None
    base_count: int = 0

    @property
    def depth(self) -> int:
        return 0 if self.base is None else self.base.depth + 1

    def holding(self, count: int) -> "Source":
        """Returns the oldest list of the chain that holds the first `count` items."""
        return self.base.holding(count) if self.base is not None and count <= self.base_count else self


@dataclass(slots=True)
class Known(Generic[Item]):
    """The last stored form of a list. owned: this process wrote its last row, so no other process continues it."""

    source: Source
    items: list[Item] = field(default_factory=list)
    owned: bool = False


def common(items: Sequence[Item], value: Sequence[Any], same: Callable[[Item, Any], bool]) -> int:
    """Returns how many items of the known list the value begins with."""
    for at, (item, other) in enumerate(zip(items, value, strict=False)):
        if not same(item, other):
            return at
    return min(len(items), len(value))


def grow(
    known: Known[Item] | None,
    prefix: int,
    new: list[Item],
    new_id: Callable[[], str],
    write: Callable[[str, int, Source | None, Sequence[Item]], None],
) -> Known[Item]:
    """Returns the list of the first `prefix` items of the known list, followed by the new items; writes at most one
    row.

    write: takes the list id, the index of the first item, the list it begins with, and the items.
    """
    if known is not None and not new:
        whole = prefix == len(known.items)
        return known if whole else Known(known.source.holding(prefix), known.items[:prefix])
    if known is not None and known.owned and prefix == len(known.items):
        write(known.source.list_id, prefix, None, new)
        known.items.extend(new)
        return known
    if not new:
        return Known(Source(new_id()), owned=True)
    begin = known.items[:prefix] if known is not None else []
    base = known.source.holding(prefix) if known is not None and prefix else None
    if base is not None and base.depth + 1 < MAX_BASES:
        source = Source(new_id(), base, prefix)
        write(source.list_id, prefix, base, new)
    else:
        source = Source(new_id())
        write(source.list_id, 0, None, begin + new)
    return Known(source, begin + new, owned=True)


def source_of(rows: Mapping[str, Sequence[Row]], list_id: str) -> Source:
    """Returns the source of a list. rows: by list id, in order. A deleted list has no base."""
    first = next(iter(rows.get(list_id, ())), None)
    if first is None or first.base_list is None:
        return Source(list_id)
    return Source(list_id, source_of(rows, first.base_list), first.base_count)


def read(rows: Mapping[str, Sequence[Row]], list_id: str, count: int) -> list[Any]:
    """Returns the first `count` items; those whose rows were deleted are left out."""
    own = rows.get(list_id, ())
    items: list[Any] = []
    if own and own[0].base_list is not None:
        items = read(rows, own[0].base_list, min(count, own[0].base_count))
    for row in own:
        items += row.items[: max(0, count - row.first)]
    return items
