"""The retrieval context of a user's message: memories, preferences, entities and their numbers in one value.

memory_block.py makes it a message to the model; the turns come from the tiers.

A caller that uses the memories records the access with `Memories.accessed` afterwards.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from pydantic_core import to_json

from turnlog.agent.context.about_memory import asks_for_everything
from turnlog.agent.recall.memory_search import TOP_K, MemoryRecall, RecalledMemory
from turnlog.events.contracts import UserPreferences
from turnlog.events.local_time import local, zone_or
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.entities_lookup import entities_named
from turnlog.projectors.models.memories.lookup import (
    StoredMemory,
    memories_for_any_question,
    preferences_set,
    valid_memories,
)
from turnlog.projectors.models.memories.search import MemoryScope

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


class Preferences(NamedTuple):
    """named: set by hand or, where not, as last said. others: all other preferences, most recently said first."""

    named: UserPreferences = UserPreferences()
    others: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """For a model, what is named first."""
        given = self.named.model_dump(exclude_none=True, exclude={"enable_memory", "enable_suggestions"})
        quiet = ["suggestions: only when asked for"] if self.named.enable_suggestions is False else []
        return [*(f"{name.replace('_', ' ')}: {_said(value)}" for name, value in given.items()), *quiet, *self.others]


def user_preferences(said: Iterable[Preferred], by_hand: UserPreferences = UserPreferences()) -> Preferences:
    """said: valid PREFERENCE memories, most recently said first; the most recent one of each name counts."""
    found: dict[str, str] = {}
    others: list[str] = []
    for one in said:
        read = _read(one)
        found = read | found
        if not read:
            others.append(one.content)
    named = found | by_hand.model_dump(exclude_none=True)
    return Preferences(UserPreferences.model_validate(named), tuple(others))


def _said(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _read(one: Preferred) -> dict[str, str]:
    """The named preferences that a memory states; none when it is negated."""
    if _NOT.search(one.content) or not _is_about_answers(one):
        return {}
    tables = (("communication_style", _STYLES), ("response_length", _LENGTHS), ("language", _LANGUAGES))
    read = {name: _first(table, one.content) for name, table in tables}
    return {name: value for name, value in read.items() if value is not None}


def _is_about_answers(one: Preferred) -> bool:
    by_rule = (one.dedupe_key or "").startswith("answer-")
    return by_rule or bool(_ABOUT_ANSWERS.search(one.content)) or _first(_LANGUAGES, one.content) is not None


def _first(patterns: dict[str, str], text: str) -> str | None:
    return next((name for name, pattern in patterns.items() if re.search(pattern, text, re.IGNORECASE)), None)


PREFERENCES = 100
EVERYTHING = 100  # memories for a question for all of them


NONE = Preferences()


@dataclass(frozen=True, slots=True)
class RetrievalContext:
    """memories: best first, each with `explain()`. always: others that go to a model whatever is asked: all where the
    user has no more than top_k, else those on health. entities: named in the message or in the memories, most mentioned
    first. message_count: turns of the conversation. degraded: why vectors were not used, or None."""

    memories: tuple[RecalledMemory, ...] = ()
    always: tuple[StoredMemory, ...] = ()
    preferences: Preferences = NONE
    entities: tuple[dict[str, Any], ...] = ()
    message_count: int = 0
    degraded: str | None = None

    @property
    def shown(self) -> list[StoredMemory]:
        """What a model gets, the best and then what it must not overlook."""
        return [*(one.memory for one in self.memories), *self.always]


async def retrieval_context(
    conn: Connection,
    recall: MemoryRecall,
    tenant: str,
    user: str,
    message: str,
    now: datetime,
    message_count: int = 0,
    top_k: int = TOP_K,
) -> RetrievalContext:
    """message_count: turns of the conversation. A user who set enable_memory to False gets the preferences set by hand
    and nothing else. Raises InvalidToken."""
    memories = memory_thread(user)
    preferences = await preferences_of(conn, tenant, user, now)
    if preferences.named.enable_memory is False:
        return RetrievalContext(preferences=preferences)
    now = local(now, zone_or(preferences.named.timezone, UTC))
    found = await recall.search(conn, MemoryScope(tenant, memories, now), message, top_k)
    ids = {one.memory.id for one in found.memories}
    few = EVERYTHING if asks_for_everything(message) else top_k
    any_question = await memories_for_any_question(conn, tenant, memories, now, few)
    always = tuple(one for one in any_question if one.id not in ids)
    names = {*found.names, *(name for one in found.memories for name in one.memory.entities)}
    about = await entities_named(conn, tenant, memories, names) if names else []
    return RetrievalContext(found.memories, always, preferences, tuple(about), message_count, found.degraded)


async def preferences_of(conn: Connection, tenant: str, user: str, now: datetime) -> Preferences:
    """What was said counts only for a user who wants it remembered. Raises InvalidToken."""
    place = (tenant, memory_thread(user))
    by_hand = await preferences_set(conn, *place)
    if by_hand.enable_memory is False:
        return Preferences(by_hand)
    return user_preferences(await valid_memories(conn, *place, now, ("PREFERENCE",), PREFERENCES), by_hand)


def entity_line(entity: Mapping[str, Any]) -> str:
    """An entity for a model: type and name, then what is known of it."""
    known = [entity["description"]] if entity["description"] else []
    known += [f"{name} {_value(value)}" for name, value in entity["attributes"].items()]
    known += [f"{one['type']} {one['target']}" for one in entity["relations"]]
    return f"{entity['type']} {entity['name']}" + (f": {'; '.join(known)}" if known else "")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value).decode()
