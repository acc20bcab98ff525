"""The retrieval context of a user's message: turns, memories, preferences and entities in one value (M7, E 8.1.3,
10.5).

A caller that uses the memories records the access with `Memories.accessed` afterwards.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, cast

from turnlog.agent.recall.memories import TOP_K, MemoryRecall, RecalledMemory
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.entities import entities_named
from turnlog.projectors.models.memories.lookup import valid_memories
from turnlog.projectors.models.memories.search import MemoryScope
from turnlog.projectors.models.message import Message, newest_messages

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
    """None: not stated. language: ISO 639 code. others: all other preferences, most recently said first."""

    communication_style: Style | None = None
    response_length: Length | None = None
    language: str | None = None
    others: tuple[str, ...] = ()


def user_preferences(preferences: Iterable[Preferred]) -> UserPreferences:
    """preferences: valid PREFERENCE memories, most recently said first; the most recent one of each name counts."""
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
    """The named preferences that a memory states; none when it is negated."""
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


RECENT_MESSAGES = 10
PREFERENCES = 100


@dataclass(frozen=True, slots=True)
class ContextMeta:
    """message_count, memory_count: in the context. degraded: why vectors were not used, or None."""

    thread: str | None
    message_count: int
    memory_count: int
    degraded: str | None


@dataclass(frozen=True, slots=True)
class RetrievalContext:
    """recent_messages: oldest first. relevant_memories: best first, each with `explain()`. entities: named in the
    message or in the memories, most mentioned first, as rows of P8."""

    recent_messages: tuple[Message, ...]
    relevant_memories: tuple[RecalledMemory, ...]
    preferences: UserPreferences
    entities: tuple[dict[str, Any], ...]
    meta: ContextMeta


async def retrieval_context(
    conn: Connection,
    recall: MemoryRecall,
    tenant: str,
    user: str,
    message: str,
    thread: str | None = None,
    *,
    now: datetime | None = None,
    recent_messages: int = RECENT_MESSAGES,
    top_k: int = TOP_K,
) -> RetrievalContext:
    """thread: the conversation, None before the first turn. now: None for the current time. Raises InvalidToken."""
    memories, at = memory_thread(user), now or datetime.now(UTC)
    recent = [] if thread is None else await newest_messages(conn, tenant, thread, recent_messages)
    found = await recall.search(conn, MemoryScope(tenant, memories, at), message, top_k)
    names = {*found.names, *(name for one in found.memories for name in one.memory.entities)}
    about = await entities_named(conn, tenant, memories, names) if names else []
    preferred = await valid_memories(conn, tenant, memories, at, ("PREFERENCE",), PREFERENCES)
    meta = ContextMeta(thread, len(recent), len(found.memories), found.degraded)
    return RetrievalContext(tuple(recent), found.memories, user_preferences(preferred), tuple(about), meta)
