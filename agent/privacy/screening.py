"""Sanitises turns before they are published, if the settings request it. Pure.

Removed words are not stored anywhere, not even for their user. Only turns need to be changed, because summaries and
memories are made from turns.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel, mask_secrets, sanitise, sanitised_json
from turnlog.events.append import Screen
from turnlog.events.contracts import Event, TurnRecorded

_SAID = frozenset({"text", "thinking", "input"})


def screen_of(level: SanitiseLevel, regions: Sequence[str]) -> Screen:
    """Returns the function applied to each event before it is published."""

    clean = partial(sanitise, level=level, regions=regions)

    async def screen(events: Sequence[Event]) -> list[Event]:
        return [
            event.model_copy(update={"data": clean_turn(event.data, clean)})
            if isinstance(event.data, TurnRecorded)
            else event
            for event in events
        ]

    return screen


def without_secrets(turn: TurnRecorded) -> TurnRecorded:
    """Returns the turn with passwords, keys, card numbers and identity numbers masked."""
    return clean_turn(turn, mask_secrets)


def clean_turn(turn: TurnRecorded, clean: Callable[[str], str]) -> TurnRecorded:
    """Returns the turn with texts, thinking, tool input and tool results cleaned; ids, names, signatures and images
    stay."""
    said = turn.model_dump(mode="json", exclude_none=True)
    calls = [{**call, "arguments": clean(call["arguments"])} for call in said["tool_calls"]]
    content = clean_content(said["content"], clean)
    if content == said["content"] and calls == said["tool_calls"]:
        return turn
    return TurnRecorded.model_validate({**said, "content": content, "tool_calls": calls})


def clean_content(content: Any, clean: Callable[[str], str]) -> Any:
    """Returns the content with its texts cleaned. content: a string or a list of blocks."""
    if isinstance(content, str):
        return clean(content)
    blocks = []
    for block in content:
        parts = {name: sanitised_json(value, clean) for name, value in block.items() if name in _SAID}
        if "content" in block:
            parts["content"] = clean_content(block["content"], clean)
        blocks.append(block | parts)
    return blocks
