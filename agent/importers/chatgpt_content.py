"""The content types of ChatGPT's export to our content blocks."""

import json
from collections.abc import Callable
from typing import Any

from turnlog.events.contracts import Block, Content, ImageBlock, TextBlock, ThinkingBlock

HIDDEN = frozenset(("user_editable_context", "model_editable_context"))
Part = dict[str, Any]


def content_of(content: Part) -> Content:
    """Text, or blocks where there is more than text. Raises ValueError for a type it does not know."""
    kind = content.get("content_type")
    make = _TYPES.get(str(kind))
    if make is not None:
        return make(content)
    if isinstance(content.get("text"), str):
        return str(content["text"])
    raise ValueError(f"content_type {kind!r} is not known and has no text")


def _text(content: Part) -> Content:
    return "\n".join(part for part in content["parts"] if isinstance(part, str))


def _multimodal(content: Part) -> Content:
    return tuple(_part(part) for part in content["parts"] if part)


def _part(part: Any) -> Block:
    """The export points to pictures and sounds inside its zip; the pointer is kept, not the bytes."""
    if isinstance(part, str):
        return TextBlock(text=part)
    kind = part.get("content_type")
    if kind == "image_asset_pointer":
        return ImageBlock(url=part["asset_pointer"])
    if kind == "audio_transcription":
        return TextBlock(text=part["text"])
    return TextBlock(text=f"[{kind}]")


def _code(content: Part) -> Content:
    return str(content["text"])


def _thoughts(content: Part) -> Content:
    return tuple(
        ThinkingBlock(thinking="\n".join(filter(None, (thought.get("summary"), thought.get("content")))))
        for thought in content["thoughts"]
    )


def _recap(content: Part) -> Content:
    return (ThinkingBlock(thinking=content["content"]),)


def _quote(content: Part) -> Content:
    """A passage of a web page or file that ChatGPT read."""
    source = " ".join(filter(None, (content.get("title"), content.get("url"))))
    return f"{source}\n{content.get('text') or ''}".strip()


def _browsing(content: Part) -> Content:
    return "\n".join(filter(None, (content.get("result"), content.get("summary"))))


def _error(content: Part) -> Content:
    return f"{content.get('name') or 'error'}: {content.get('text') or json.dumps(content)}"


_TYPES: dict[str, Callable[[Part], Content]] = {
    "text": _text,
    "multimodal_text": _multimodal,
    "code": _code,
    "execution_output": _code,
    "thoughts": _thoughts,
    "reasoning_recap": _recap,
    "tether_quote": _quote,
    "tether_browsing_display": _browsing,
    "system_error": _error,
}
