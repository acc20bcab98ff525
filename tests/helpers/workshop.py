"""Tools of the example team in tests/teams/workshop: some answer, others fail in each way that a tool can fail."""

import asyncio
from collections import Counter
from typing import Annotated, Any

from pydantic import Field

from turnlog.agent.team.tools import Mistake, Use, tool

PARTS: dict[str, dict[str, Any]] = {
    "chain": {"name": "chain", "usd": 20, "shelves": [{"row": 3}, {"row": 7}]},
    "brake": {"name": "brake", "usd": 35, "shelves": []},
}
CALLED: Counter[tuple[str, str]] = Counter()  # the number of calls, including retries, by user and tool
both = asyncio.Barrier(2)


@tool
def find_part(name: str) -> dict[str, Any]:
    """Returns a part by its name."""
    if name not in PARTS:
        raise Mistake(f"there is no part {name}")
    return PARTS[name]


@tool
def price_of(part: str, times: Annotated[int, Field(ge=1)] = 1, note: str = "") -> dict[str, Any]:
    """Returns the price of a part, so many times."""
    return {"usd": find_part(part)["usd"] * times, "note": note}


@tool
def count_parts() -> int:
    """Returns how many parts there are."""
    return len(PARTS)


@tool(retries=0, writes=True)
async def note_down(use: Use, text: str) -> dict[str, Any]:
    """Notes a text down for the person who asks."""
    await use.records.put("notes", "note", {"text": text}, use.effect)
    return {"noted": text}


@tool(timeout_s=20)
async def meet_left() -> str:
    """Waits until meet_right is called, too."""
    await both.wait()
    return "met"


@tool(timeout_s=20)
async def meet_right() -> str:
    """Waits until meet_left is called, too."""
    await both.wait()
    return "met"


@tool
def fails(use: Use) -> None:
    """Fails each time."""
    CALLED[use.user, "fails"] += 1
    raise RuntimeError("a secret of the workshop")


@tool
def fails_once(use: Use) -> str:
    """Fails the first time."""
    CALLED[use.user, "fails_once"] += 1
    if CALLED[use.user, "fails_once"] == 1:
        raise ConnectionError("a secret of the workshop")
    return "at the second try"


@tool(retries=0, writes=True)
def fails_writing(use: Use) -> None:
    """Fails, and must not be tried again."""
    CALLED[use.user, "fails_writing"] += 1
    raise RuntimeError("a secret of the workshop")


@tool(timeout_s=0.2)
async def never_ends() -> None:
    """Waits for ever."""
    await asyncio.Event().wait()
