"""Makes pages of lists. A cursor names the place after which the next page begins, so that no item is repeated or
skipped when the list changes."""

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from fastapi import Query, Response
from pydantic import BaseModel

from turnlog.consumers.cursors import cursor_of, moment
from turnlog.events.errors import TurnlogError

__all__ = ["cursor_of", "moment"]
T = TypeVar("T")
NEXT_CURSOR = "X-Next-Cursor"
Place = tuple[str | int, ...]
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of items.")]
Cursor = Annotated[str | None, Query(max_length=2_000, description="`next` of the previous page.")]


class BadCursor(TurnlogError):
    """The cursor was not made by this server."""

    code = "bad-cursor"


class Page(BaseModel, Generic[T]):
    """One page of a list. next: the cursor of the following page, null on the last one."""

    items: list[T]
    next: str | None = None


def page_of(items: Sequence[T], limit: int, key: Callable[[T], Place]) -> Page[T]:
    """Returns a page from up to limit + 1 items; the extra item only shows that more follow.

    key: returns an item's place in the list, for the cursor.
    """
    shown = list(items[:limit])
    return Page(items=shown, next=cursor_of(*key(shown[-1])) if len(items) > limit else None)


def page_after(items: Sequence[T], limit: int, cursor: str | None, key: Callable[[T], Place]) -> Page[T]:
    """Returns the page after the cursor. items: the whole list, sorted by `key`. Raises BadCursor."""
    kinds = [type(part) for part in key(items[0])] if items else None
    begin = place_of(cursor, *kinds) if kinds else None
    rest = items if begin is None else [item for item in items if key(item) > begin]
    return page_of(rest[: limit + 1], limit, key)


def items_of(page: Page[T], response: Response) -> list[T]:
    """Returns the items, for lists in the form of another API; the cursor of the next page goes into the header
    NEXT_CURSOR.
    """
    if page.next is not None:
        response.headers[NEXT_CURSOR] = page.next
    return page.items


def place_of(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Returns the place that a cursor names; None without a cursor. Raises BadCursor.

    kinds: the types of its parts. Times and ids are text in the cursor.
    """
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(parts, list) or len(parts) != len(kinds):
            raise ValueError
        return tuple(_part(part, kind) for part, kind in zip(parts, kinds, strict=True))
    except ValueError:
        raise BadCursor(f"{cursor[:40]!r} is not a cursor; use `next` of the previous page, unchanged") from None


def _part(part: Any, kind: type) -> Any:
    """Returns a part of a cursor as its type. Raises ValueError for another type, and for a value that Postgres cannot
    compare with a bigint or text."""
    if kind is int:
        if type(part) is not int or not -(2**63) <= part < 2**63:
            raise ValueError
        return part
    if type(part) is not str or "\0" in part or any("\ud800" <= letter <= "\udfff" for letter in part):
        raise ValueError
    return datetime.fromisoformat(part) if kind is datetime else UUID(part) if kind is UUID else part
