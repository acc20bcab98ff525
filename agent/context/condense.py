"""Condenses messages for tier 2. Condensing a message twice has the same result as once."""

from dataclasses import replace
from typing import Any

from turnlog.projectors.models.conversation.message import Message

TOOL_MAX = 200
MARK = "... (truncated)"
# Addresses in ChatGPT's exports, which only ChatGPT can open. Imports now store text instead, but older imports stored
# the addresses.
EXPORT_POINTERS = ("sediment:", "file-service:")
THINKING_TYPES = frozenset({"thinking", "reasoning", "redacted_thinking"})


def condense(message: Message, tool_max: int = TOOL_MAX) -> Message:
    """Returns the message without the assistant's thinking and with tool results cut to `tool_max` characters.

    Returns the same object if nothing is removed.
    """
    content = message.content
    if message.role == "tool":
        shorter: str | list[dict[str, Any]] = _cut_content(content, tool_max)
    elif isinstance(content, str):
        return message
    else:
        shorter = _condense_blocks(content, message.role == "assistant", tool_max)
    return message if shorter is content else replace(message, content=shorter)


def _condense_blocks(blocks: list[dict[str, Any]], assistant: bool, tool_max: int) -> list[dict[str, Any]]:
    kept = [
        _cut_result(block, tool_max) if block["type"] == "tool_result" else block
        for block in blocks
        if not (assistant and block["type"] in THINKING_TYPES)
    ]
    same = len(kept) == len(blocks) and all(a is b for a, b in zip(kept, blocks, strict=True))
    return blocks if same else kept


def _cut_result(block: dict[str, Any], tool_max: int) -> dict[str, Any]:
    content = block.get("content", "")
    shorter = _cut_content(content, tool_max)
    return block if shorter is content else {**block, "content": shorter}


def _cut_content(content: str | list[dict[str, Any]], tool_max: int) -> str | list[dict[str, Any]]:
    """Returns the content of a tool result: a short text unchanged, other content as one text of at most `tool_max`
    characters and MARK. Content with tool_result blocks keeps its blocks, and each result in it is cut."""
    if not isinstance(content, str) and any(block["type"] == "tool_result" for block in content):
        return _condense_blocks(content, False, tool_max)
    text = result_text(content)
    if len(text) > tool_max:
        return text[:tool_max] + MARK
    plain = isinstance(content, str) or all(block["type"] == "text" for block in content)
    return content if plain else text


def result_text(content: str | list[dict[str, Any]]) -> str:
    """Returns a tool's result as one text. The API does not accept images from tools, so an image is only mentioned."""
    if isinstance(content, str):
        return content
    return "\n".join(filter(None, map(_block_text, content)))


def _block_text(block: dict[str, Any]) -> str:
    if block["type"] == "text":
        return str(block["text"])
    if block["type"] == "image":
        url = str(block.get("url", ""))
        return "[image]" if not url or url.startswith(("data:", *EXPORT_POINTERS)) else f"[image: {url}]"
    return f"[{block['type']}]"
