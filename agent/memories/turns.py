"""Which stored turns may be evidence for a user's memories (M2): their own words, tool results by opt-in. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

from turnlog.agent.memories.findings import Turn
from turnlog.projectors.memory_text import normal
from turnlog.projectors.message import Message


def roles(tool_results: bool) -> tuple[str, ...]:
    return ("user", "tool") if tool_results else ("user",)


def evidence(
    messages: Iterable[Message], thread: str, user: str, among_people: bool = False, tool_results: bool = False
) -> tuple[list[Turn], int]:
    """The turns that count, in order, and how many somebody else spoke.

    among_people: several speakers and no assistant under one user, as in an imported chat: only who bears the user's
    name speaks for them.
    """
    own, others = [], 0
    for message in messages:
        if among_people and message.name is not None and normal(message.name) != normal(user):
            others += 1
            continue
        own += [
            Turn(thread, message.seq, message.event_id, message.time, text, message.name, tool)
            for text, tool in _texts(message, tool_results)
        ]
    return own, others


def _texts(message: Message, tool_results: bool) -> Iterator[tuple[str, bool]]:
    if message.role == "tool":
        if tool_results:
            yield _text(message.content, "text"), True
        return
    if message.role != "user":
        return
    if text := _text(message.content, "text"):
        yield text, False
    if tool_results and not isinstance(message.content, str):
        for block in message.content:
            if block.get("type") == "tool_result" and (text := _text(block["content"], "text")):
                yield text, True


def _text(content: str | list[dict[str, Any]], kind: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in content if block.get("type") == kind)
