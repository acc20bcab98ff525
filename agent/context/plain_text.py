"""Converts stored content to plain text, for people, summaries and topics."""

import re
from dataclasses import replace
from typing import Any

from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.speech import attributed_to

# A caption must not contain "[", so that a text with many "[image: " is searched in linear time.
_CAPTION = re.compile(r"\[image: (?:an? (?:\w+ )?(?:photo|photograph|photography|picture|image) of )?([^\[\]]*)\]")


def content_text(content: str | list[dict[str, Any]], tool_chars: int = 400) -> str:
    """Returns the text of a message, without thinking and images. Of blocks, a tool call becomes `[call name]`, and a
    tool result is cut to tool_chars; content that is a string is never cut."""
    if isinstance(content, str):
        return content
    return "\n".join(part for block in content if (part := _block(block, tool_chars)))


def said(message: Message, tool_chars: int = 400) -> str:
    """Returns `speaker: text`, or '' if there is no text. The text of a tool's turn is cut to tool_chars.

    Only the caption of an importer's `[image: a photo of a dog]` is kept, because "image" is not a topic.
    """
    text = content_text(message.content, tool_chars)
    if message.role == "tool":
        text = text[:tool_chars]
    text = _CAPTION.sub(r"(\1)", text).strip()
    return f"{speaker_of(message)}: {text}" if text else ""


def speaker_of(message: Message) -> str:
    """Returns the speaker to whom the words of a turn are attributed: a name, a role, `program` or `quoted`."""
    return message.name or attributed_to(message)


def with_speakers(messages: list[Message]) -> list[Message]:
    """Returns the turns of a conversation; if several users speak, a user's turn without a name gets the user's id as
    its name."""
    if len({message.user for message in messages if message.role == "user" and message.user is not None}) < 2:
        return messages
    return [
        replace(message, name=message.user) if message.role == "user" and message.name is None else message
        for message in messages
    ]


def _block(block: dict[str, Any], tool_chars: int) -> str:
    match block.get("type"):
        case "text":
            return str(block["text"])
        case "tool_use":
            return f"[call {block['name']}]"
        case "tool_result":
            return content_text(block["content"], tool_chars)[:tool_chars]
    return ""
