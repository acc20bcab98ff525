"""Converts content of chat APIs (OpenAI parts, Anthropic blocks, turnlog's own blocks) to content blocks."""

import json
import re
from collections.abc import Callable
from typing import Any

from turnlog.events.contracts import Block, Content, ImageBlock, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock

Part = dict[str, Any]


def content_of(value: Any) -> Content:
    """Returns the content in the form in which it is stored: a string stays a string, a list of strings and parts
    becomes blocks. Raises ValueError if there is no content, or a part is malformed.

    A part of an unknown type becomes a text with its type and its JSON.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return tuple(_block(part) for part in value)
    if value is None:
        raise ValueError("no text: the turn has no content")
    raise ValueError(f"content is {type(value).__name__}; it must be text or a list of blocks")


def as_document(text: str) -> str:
    """Returns the text of a file that came with a message, marked so that it never counts as the sender's own words."""
    return f"<document>\n{re.sub('(?i)</document', '< /document', text)}\n</document>"


def _block(part: Any) -> Block:
    if isinstance(part, str):
        return TextBlock(text=part)
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise ValueError("a content block must be an object with a type")
    make = _BLOCKS.get(part["type"])
    if make is None:
        return TextBlock(text=f"[{part['type']}] {as_document(json.dumps(part, ensure_ascii=False))}")
    try:
        return make(part)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a {part['type']} block has a missing or malformed field: {error}") from error


def _text(part: Part) -> Block:
    return TextBlock(text=part["text"])


def _image_url(part: Part) -> Block:
    image = part["image_url"]
    return ImageBlock(url=image if isinstance(image, str) else image["url"])


def _image(part: Part) -> ImageBlock:
    """Returns the image block of turnlog's form (a url) or Anthropic's form (a source with bytes or a url)."""
    if "source" not in part:
        return ImageBlock(url=part["url"], media_type=part.get("media_type"))
    source = part["source"]
    if source["type"] == "url":
        return ImageBlock(url=source["url"])
    kind = source["media_type"]
    return ImageBlock(url=f"data:{kind};base64,{source['data']}", media_type=kind)


def _audio(part: Part) -> Block:
    """Returns a note instead of the audio data, which is left out."""
    audio = part.get("input_audio", part)
    return TextBlock(text=f"[audio: {audio.get('format') or audio.get('transcript') or 'sound'}]")


def _file(part: Part) -> Block:
    file = part.get("file", part)
    name = file.get("filename") or file.get("title") or file.get("file_id") or "unnamed"
    return TextBlock(text=f"[file: {name}]")


def _tool_use(part: Part) -> Block:
    return ToolUseBlock(id=part["id"], name=part["name"], input=part.get("input") or {})


def _tool_result(part: Part) -> Block:
    content = part.get("content") or ("" if part.get("content") is None else part["content"])
    return ToolResultBlock(
        tool_use_id=part["tool_use_id"],
        content=content if isinstance(content, str) else tuple(_result_block(item) for item in content),
        is_error=part.get("is_error") or False,
    )


def _result_block(part: Any) -> TextBlock | ImageBlock:
    block = _block(part)
    if isinstance(block, TextBlock | ImageBlock):
        return block
    return TextBlock(text=json.dumps(part, ensure_ascii=False))


_BLOCKS: dict[str, Callable[[Part], Block]] = {
    "text": _text,
    "input_text": _text,
    "output_text": _text,
    "refusal": lambda part: TextBlock(text=part["refusal"]),
    "image_url": _image_url,
    "input_image": _image_url,
    "image": _image,
    "input_audio": _audio,
    "audio": _audio,
    "file": _file,
    "input_file": _file,
    "document": _file,
    "thinking": lambda part: ThinkingBlock(thinking=part["thinking"], signature=part.get("signature")),
    "redacted_thinking": lambda part: ThinkingBlock(thinking="[redacted]", signature=part.get("data")),
    "tool_use": _tool_use,
    "server_tool_use": _tool_use,
    "tool_result": _tool_result,
}
