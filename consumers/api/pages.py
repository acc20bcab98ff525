"""Pages of lists: a cursor says where the next page begins, so that nothing is repeated or left out meanwhile."""

import base64
import json
from datetime import datetime
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel

from turnlog.events.errors import TurnlogError

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=200, description="At most so many.")]
Cursor = Annotated[str | None, Query(max_length=2_000, description="`next` of the page before.")]


class BadCursor(TurnlogError):
    """The cursor is not one that this server made."""

    code = "bad-cursor"


class Page(BaseModel, Generic[T]):
    """next: the cursor of the following page, null on the last one."""

    items: list[T]
    next: str | None = None


def cursor_of(*place: str | int) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def place_of(cursor: str | None, *kinds: type) -> list[str | int] | None:
    """What cursor_of was given; None without a cursor. kinds: the types of its parts. Raises BadCursor."""
    if cursor is None:
        return None
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        place = None
    if not isinstance(place, list) or [type(part) for part in place] != list(kinds):
        raise BadCursor(f"{cursor[:40]!r} is no cursor; use `next` of the page before as it is")
    return place


def moment_of(text: str) -> datetime:
    """Raises BadCursor."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadCursor(f"{text[:40]!r} in the cursor is no time; use `next` of the page before as it is") from None
