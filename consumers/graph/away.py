"""A part of the context whose source is away stays empty, and the answer is made without it (O3)."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import psycopg

from turnlog.events.errors import TurnlogError

PATIENCE_S = 5.0
T = TypeVar("T")


async def unless_away(work: Awaitable[T], empty: T) -> tuple[T, str]:
    """What the work returns and '', or `empty` and the reason, after PATIENCE_S seconds at most."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work, ""
    except TimeoutError:
        return empty, f"no answer within {PATIENCE_S:g} s"
    except (TurnlogError, psycopg.Error, OSError) as error:
        return empty, str(error).strip() or repr(error)
