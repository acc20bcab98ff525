"""What is sensitive in a text, made unreadable, by level (M8, E 8.9). Pure.

LIGHT is for our own logs: secrets, identity numbers and cards. MODERATE is for exports: mail addresses and phone
numbers too. FULL is for the public: grades too. The same text always gives the same, and what was sanitised once
stays as it is.
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
    """How much is made unreadable; each level does what those before it do."""

    LIGHT = 1
    MODERATE = 2
    FULL = 3


def sanitise(text: str, level: SanitiseLevel, regions: Sequence[str] = REGIONS) -> str:
    """The text with everything masked that its level names. regions: of phone numbers without a country code."""
    for _ in range(_AGAIN):  # a mask can make a boundary at which something else is found
        found = _once(text, level, regions)
        if found == text:
            break
        text = found
    return text


def sanitise_json(value: Any, level: SanitiseLevel, regions: Sequence[str] = REGIONS) -> Any:
    """Every string within a JSON value; what stands under the name of a secret is masked whole. Names stay."""
    return _walk(value, lambda text: sanitise(text, level, regions))


def _once(text: str, level: SanitiseLevel, regions: Sequence[str]) -> str:
    text = credentials.masked(text, MASK)
    text = identifiers.masked(text)
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
