"""Sanitises turns before they are published, if the settings say so. Pure.

What is removed is stored nowhere, not even for its user. Only turns are changed: summaries and memories are made from
them.
"""

from collections.abc import Sequence
from typing import Any

from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel, sanitise, sanitise_json
from turnlog.events.append import Screen
from turnlog.events.contracts import Event, TurnRecorded

_SAID = frozenset({"text", "thinking", "input"})


def screen_of(level: SanitiseLevel, regions: Sequence[str]) -> Screen:
    """Returns the function applied to each event before it is published."""

    def screen(event: Event) -> Event:
        if not isinstance(event.data, TurnRecorded):
            return event
        return event.model_copy(update={"data": clean_turn(event.data, level, regions)})

    return screen


def clean_turn(turn: TurnRecorded, level: SanitiseLevel, regions: Sequence[str]) -> TurnRecorded:
    """Sanitises texts, thinking, tool input and tool results; ids, names, signatures and images stay."""
    said = turn.model_dump(mode="json", exclude_none=True)
    calls = [{**call, "arguments": sanitise(call["arguments"], level, regions)} for call in said["tool_calls"]]
    content = clean_content(said["content"], level, regions)
    if content == said["content"] and calls == said["tool_calls"]:
        return turn
    return TurnRecorded.model_validate({**said, "content": content, "tool_calls": calls})


def clean_content(content: Any, level: SanitiseLevel, regions: Sequence[str]) -> Any:
    """Returns the content, a string or a list of blocks, with what the level masks masked."""
    if isinstance(content, str):
        return sanitise(content, level, regions)
    blocks = []
    for block in content:
        clean = {name: sanitise_json(value, level, regions) for name, value in block.items() if name in _SAID}
        if "content" in block:
            clean["content"] = clean_content(block["content"], level, regions)
        blocks.append(block | clean)
    return blocks
