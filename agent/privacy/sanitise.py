"""Masks what is sensitive in a text, by level (M8, E 8.9). Pure.

LIGHT, for turnlog's own logs: secrets, identity numbers and cards. MODERATE, for exports: mail addresses, phone
numbers and identity numbers with a typing error too. FULL, for publication: grades too. The result is deterministic,
and sanitising it again changes nothing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from turnlog.agent.privacy import credentials, identifiers, phones

REGIONS = ("CN", "US")
MASK = "****"
_AGAIN = 8
_SECRET_NAMES = re.compile(
    r"(?:^|[_\-.])(?:password|passwd|pwd|secret|api[_-]?key|access[_-]?key|access[_-]?token|refresh[_-]?token|密码)$",
    re.IGNORECASE,
)


class SanitiseLevel(IntEnum):
    """How much is masked; each level includes the ones before it."""

    LIGHT = 1
    MODERATE = 2
    FULL = 3


def sanitise(text: str, level: SanitiseLevel, regions: Sequence[str] = REGIONS) -> str:
    """The text, masked according to the level. regions: of phone numbers without a country code."""
    for _ in range(_AGAIN):  # a mask can create a word boundary at which another pattern matches
        found = _once(text, level, regions)
        if found == text:
            break
        text = found
    return text


def sanitise_json(value: Any, level: SanitiseLevel, regions: Sequence[str] = REGIONS) -> Any:
    """Sanitises every string in a JSON value; values under a key such as `password` are masked whole. Keys stay."""
    return _walk(value, lambda text: sanitise(text, level, regions))


def _once(text: str, level: SanitiseLevel, regions: Sequence[str]) -> str:
    text = credentials.masked(text, MASK)
    text = identifiers.masked(text, exact=level < SanitiseLevel.MODERATE)
    if level >= SanitiseLevel.MODERATE:
        text = identifiers.mails_masked(text)
        text = phones.masked(text, tuple(regions))
    return identifiers.grades_masked(text) if level >= SanitiseLevel.FULL else text


def _walk(value: Any, clean: Callable[[str], str]) -> Any:
    match value:
        case str():
            return clean(value)
        case Mapping():
            return {name: _named(str(name), item, clean) for name, item in value.items()}
        case list() | tuple():
            return [_walk(item, clean) for item in value]
    return value


def _named(name: str, value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str) and value and _SECRET_NAMES.search(name):
        return MASK
    return _walk(value, clean)
