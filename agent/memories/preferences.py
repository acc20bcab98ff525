"""A user's preferences, folded from their memories (E 10.5 UserPreferences). Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, cast

Style = Literal["friendly", "professional", "casual"]
Length = Literal["brief", "moderate", "detailed"]

_STYLES = {
    "friendly": r"\b(?:friendly|warm(?:ly)?)\b|友好|亲切|热情",
    "professional": r"\b(?:professional(?:ly)?|formal(?:ly)?|business-like)\b|专业|正式|严谨",
    "casual": r"\b(?:casual(?:ly)?|informal(?:ly)?|relaxed)\b|随意|轻松|口语",
}
_ANSWERS = r"answer|repl(?:y|ies)|respon[sd]|explanation|explain|message|talk|write|tone|style|speak|concise|brief"
_ABOUT_ANSWERS = re.compile(rf"\b(?:{_ANSWERS})|回答|回复|答案|解释|说话|语气|风格|简短|简洁|详细", re.IGNORECASE)
_LENGTHS = {
    "brief": r"\b(?:brief(?:ly)?|short(?:er)?|concise(?:ly)?|terse)\b|to the point|简短|简洁|简单点|短一点|长话短说",
    "detailed": r"\b(?:detail(?:s|ed)?|long(?:er)?|thorough(?:ly)?|in depth|step by step)\b|详细|详尽|具体|长一点",
    "moderate": r"\b(?:moderate(?:ly)?|medium)\b|适中|不长不短",
}
_LANGUAGES = {
    code: rf"\b(?:in|speak|use|prefer)\s+(?:{english})\b|\b(?:{english})\s+(?:answers|replies)|{chinese}"
    for code, english, chinese in (
        ("en", "english", "英文|英语"),
        ("zh", "chinese|mandarin", "中文|汉语|普通话"),
        ("yue", "cantonese", "粤语"),
        ("ja", "japanese", "日文|日语"),
        ("ko", "korean", "韩文|韩语"),
        ("es", "spanish", "西班牙语"),
        ("fr", "french", "法文|法语"),
        ("de", "german", "德文|德语"),
        ("it", "italian", "意大利语"),
        ("pt", "portuguese", "葡萄牙语"),
        ("ru", "russian", "俄文|俄语"),
        ("ar", "arabic", "阿拉伯语"),
        ("hi", "hindi", "印地语"),
    )
}
_NOT = re.compile(r"\b(?:not|no|don['’]t|never|dislike|hate|avoid)\b|不要|不喜欢|别用|讨厌", re.IGNORECASE)


class Preferred(Protocol):
    @property
    def content(self) -> str: ...
    @property
    def dedupe_key(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class UserPreferences:
    """None: nothing was said of it. language: its ISO 639 code. others: what else the user prefers, said last first."""

    communication_style: Style | None = None
    response_length: Length | None = None
    language: str | None = None
    others: tuple[str, ...] = ()


def folded(preferences: Iterable[Preferred]) -> UserPreferences:
    """PREFERENCE memories that hold, said last first: of each thing the last word counts."""
    found: dict[str, str] = {}
    others: list[str] = []
    for one in preferences:
        read = _read(one)
        for name, value in read.items():
            found.setdefault(name, value)
        if not read:
            others.append(one.content)
    return UserPreferences(
        cast(Style | None, found.get("style")),
        cast(Length | None, found.get("length")),
        found.get("language"),
        tuple(others),
    )


def _read(one: Preferred) -> dict[str, str]:
    """Which of the named preferences a memory is; what is refused is none of them."""
    if _NOT.search(one.content) or not _is_about_answers(one):
        return {}
    tables = (("style", _STYLES), ("length", _LENGTHS), ("language", _LANGUAGES))
    read = {name: _first(table, one.content) for name, table in tables}
    return {name: value for name, value in read.items() if value is not None}


def _is_about_answers(one: Preferred) -> bool:
    by_rule = (one.dedupe_key or "").startswith("answer-")
    return by_rule or bool(_ABOUT_ANSWERS.search(one.content)) or _first(_LANGUAGES, one.content) is not None


def _first(patterns: dict[str, str], text: str) -> str | None:
    return next((name for name, pattern in patterns.items() if re.search(pattern, text, re.IGNORECASE)), None)
