"""A memory as a person writes it. Pure."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from turnlog.agent.memories.importance import first_importance
from turnlog.events.errors import TurnlogError
from turnlog.events.memory_contracts import Memory, MemoryKind

MAX_CONTENT_CHARS = 8_000


class InvalidMemory(TurnlogError):
    """What was given is no memory; the message says what to change."""

    code = "invalid-memory"


def written(id_: UUID, content: str, kind: MemoryKind, at: datetime, fields: dict[str, Any]) -> Memory:
    """fields: further ones of Memory. Raises InvalidMemory."""
    usual = {
        "id": id_,
        "kind": kind,
        "content": checked(content),
        "importance": first_importance(kind, content),
        "confidence": 1.0,
        "origin": "user",
        "valid_from": at,
    }
    try:
        return Memory.model_validate(usual | fields)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise InvalidMemory(f"this is no memory: {wrong}") from None


def checked(content: str) -> str:
    """The words without space around them. Raises InvalidMemory when there are none, too many, or they are no text."""
    text = content.strip()
    if not text:
        raise InvalidMemory("a memory needs words; its content is empty")
    if len(text) > MAX_CONTENT_CHARS:
        raise InvalidMemory(
            f"the content has {len(text)} characters, more than {MAX_CONTENT_CHARS}; a memory is one claim, "
            "so split it or import it as turns"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMemory("the content holds a lone surrogate; send valid Unicode") from None
    return text


def share(name: str, value: float) -> float:
    """Raises InvalidMemory outside of 0 to 1."""
    if not 0 <= value <= 1:
        raise InvalidMemory(f"{name} is {value:g}; give a number from 0 to 1")
    return value
