"""What the form of a text says, in English and Chinese: does it ask for several things, does it tell details? Pure."""

import re

_SEVERAL = re.compile(
    r"^(what|which|where|who)\b.*\b(has|have)\b|^(what|which) (?!(?:does|was|has|is)\b)(\w+ )?\w{3,}(?<!s)s\b"
    r"|\b(both|how many|how often|how much|in common|list)\b|哪些|哪几|几次|多少次|几个|分别|共同|都.{0,8}(什么|哪)",
    re.IGNORECASE,
)
# It begins with a set of characters, which is looked for many times as fast as several alternatives.
_DETAIL = re.compile(r"[\dA-Z\"“”《》「」](?:(?<![A-Z])|(?<=[a-z,] [A-Z])(?=[a-z]))")


def asks(text: str) -> bool:
    return "?" in text or "？" in text


def asks_for_several(query: str) -> bool:
    """Whether what answers it probably stands in several places: "Which cities has she visited?", 去过哪些城市？"""
    return _SEVERAL.search(query.strip()) is not None


def tells_detail(text: str) -> bool:
    """A number, a name within a sentence, or something quoted."""
    return _DETAIL.search(text) is not None
