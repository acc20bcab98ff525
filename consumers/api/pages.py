"""Pages of lists: a cursor says where the next page begins, so that nothing is repeated or left out meanwhile."""

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Generic, TypeVar
from uuid import UUID

from fastapi import Query, Response
from pydantic import BaseModel

from turnlog.consumers.cursors import cursor_of, moment
from turnlog.events.errors import TurnlogError

__all__ = ["cursor_of", "moment"]
T = TypeVar("T")
NEXT_CURSOR = "X-Next-Cursor"
Place = tuple[str | int, ...]
Limit = Annotated[int, Query(ge=1, le=200, description="At most so many.")]
Cursor = Annotated[str | None, Query(max_length=2_000, description="`next` of the page before.")]


class BadCursor(TurnlogError):
    """The cursor is not one that this server made."""

    code = "bad-cursor"


class Page(BaseModel, Generic[T]):
    """next: the cursor of the following page, null on the last one."""

    items: list[T]
    next: str | None = None


def page_of(found: Sequence[T], limit: int, place: Callable[[T], Place]) -> Page[T]:
    """found: up to limit + 1 items, to see whether more follow. place: of an item in the list, for the cursor."""
    items = list(found[:limit])
    return Page(items=items, next=cursor_of(*place(items[-1])) if len(found) > limit else None)


def page_behind(found: Sequence[T], limit: int, cursor: str | None, place: Callable[[T], Place]) -> Page[T]:
    """Of a list that was read whole, in the order of its places. Raises BadCursor."""
    kinds = [type(part) for part in place(found[0])] if found else None
    begin = place_of(cursor, *kinds) if kinds else None
    behind = found if begin is None else [one for one in found if place(one) > tuple(begin)]
    return page_of(behind[: limit + 1], limit, place)


def items_of(page: Page[T], response: Response) -> list[T]:
    """For lists whose form is not ours: the cursor of the next page is in the header NEXT_CURSOR, if there is one."""
    if page.next is not None:
        response.headers[NEXT_CURSOR] = page.next
    return page.items


def place_of(cursor: str | None, *kinds: type) -> list[str | int] | None:
    """What cursor_of was given; None without a cursor. kinds: the types of its parts. Raises BadCursor."""
    if cursor is None:
        return None
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        place = None
    if not isinstance(place, list) or [type(part) for part in place] != list(kinds) or not all(map(_storable, place)):
        raise BadCursor(f"{cursor[:40]!r} is no cursor; use `next` of the page before as it is")
    return place


def _storable(part: str | int) -> bool:
    """Whether Postgres can compare it with a bigint or a text."""
    if isinstance(part, int):
        return -(2**63) <= part < 2**63
    return "\0" not in part and not any("\ud800" <= letter <= "\udfff" for letter in part)


def id_of(text: str) -> UUID:
    """Raises BadCursor."""
    try:
        return UUID(text)
    except ValueError:
        raise BadCursor(f"{text[:40]!r} in the cursor is no id; use `next` of the page before as it is") from None


def moment_of(text: str) -> datetime:
    """Raises BadCursor."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadCursor(f"{text[:40]!r} in the cursor is no time; use `next` of the page before as it is") from None
