"""Tools of the team in tests/teams/notebook. Two of them write, and each records its calls in a file."""

import os
import uuid
from pathlib import Path
from typing import Any

from turnlog.agent.team.tools import Use, tool

CALLS = "calls.log"


@tool(writes=True)
async def note_down(use: Use, text: str) -> dict[str, Any]:
    """Notes a text down; a note that is made twice would have two stamps."""
    return await _write(use, "note_down", {"text": text})


@tool(retries=0, writes=True)
async def book(use: Use, text: str) -> dict[str, Any]:
    """Books a text."""
    return await _write(use, "book", {"text": text})


@tool
async def look_up(use: Use, word: str) -> str:
    """Looks a word up."""
    return f"{word} is known to {use.user}"


async def _write(use: Use, name: str, value: dict[str, Any]) -> dict[str, Any]:
    with (Path(os.environ["TURNLOG_HOME"]) / CALLS).open("a") as calls:
        calls.write(f"{use.user} {name}\n")
    await use.records.put(name, "it", {**value, "stamp": str(uuid.uuid4())}, use.effect)
    return {"done": name}
