"""Reads and sets a user's preferences, such as the style of answers and whether to remember anything."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, get_args
from uuid import UUID

from pydantic import ValidationError
from uuid_utils.compat import uuid7

from turnlog.agent.memory.deciding.writing import Place
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, PreferencesSet, UserPreferences
from turnlog.events.contracts.memory import Length, SecretPolicy, Style
from turnlog.events.errors import TurnlogError
from turnlog.events.local_time import zone_named
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.lookup import preferences_set, valid_memories

SOURCE = "turnlog/preferences"
READS = ("memories",)
_MOST_SAID = 100
_NOT_OF_ANSWERS = {"enable_memory", "enable_suggestions", "secrets", "retention_days"}
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
_ONE_OF_ZH = {"communication_style": Style, "response_length": Length, "secrets": SecretPolicy}
VALUES_ZH = {
    **{name: f"{'、'.join(get_args(values))} 之一" for name, values in _ONE_OF_ZH.items()},
    **dict.fromkeys(("enable_memory", "enable_suggestions"), "true 或 false"),
    **dict.fromkeys(("language", "timezone"), "1 到 100 个字符的文字"),
    "retention_days": "1 到 36500 之间的整数",
}
_OWN_VALUE_ZH = "1 到 100 个字符的文字，或最多 20 项这样的文字"
_NOT = re.compile(r"\b(?:not|no|don['’]t|never|dislike|hate|avoid)\b|不要|不喜欢|别用|讨厌", re.IGNORECASE)


class InvalidPreference(TurnlogError):
    """A preference has an unknown name or an invalid value."""

    code = "invalid-preference"

    def __init__(self, detail: str, detail_zh: str) -> None:
        super().__init__(detail)
        self.detail_zh = detail_zh


async def show_preferences(runtime: Runtime, tenant: str, user: str) -> UserPreferences:
    """Returns the user's preferences. A preference set by hand takes precedence over what the user said last; it is
    None if there is neither. Raises InvalidToken."""
    place = Place(tenant, user)
    async with runtime.reading(*READS, of=(tenant, place.thread)) as conn:
        return (await preferences_of(conn, tenant, user, datetime.now(UTC))).named


async def set_preferences(
    runtime: Runtime,
    tenant: str,
    user: str,
    values: Mapping[str, Any],
    cleared: Sequence[str] = (),
    *,
    event_id: UUID | None = None,
) -> UserPreferences:
    """Sets and removes preferences. values: new values by name; others stay as they are. A name is a field of
    UserPreferences, a preference of the team (TURNLOG_TEAM), or one that the user already has; {"schoolPreferences":
    {"regions": …}} sets school_regions. cleared: names of preferences to remove. event_id: a repeated call with the
    same id is stored once.

    Raises InvalidPreference, InvalidToken.
    """
    thread, values = Place(tenant, user).thread, _flat(values)
    if others := [name for name in (*values, *cleared) if name not in UserPreferences.model_fields]:
        own = runtime.own_preferences(runtime)
        has = (await show_preferences(runtime, tenant, user)).model_extra or {}
        if unknown := [name for name in others if name not in own and name not in has]:
            known = ", ".join(dict.fromkeys((*UserPreferences.model_fields, *own, *has)))
            raise InvalidPreference(
                f"there is no preference {unknown[0]!r}; there are {known}",
                f"没有名为 {unknown[0]!r} 的偏好；可用的有 {known.replace(', ', '、')}",
            )
        lists = {name for name in others if own.get(name) == "list" or isinstance(has.get(name), tuple)}
        values = {
            name: [value] if name in lists and isinstance(value, str) else value for name, value in values.items()
        }
    preferences = checked(values, runtime.settings.retention_days)
    data = PreferencesSet(preferences=preferences, cleared=tuple(cleared))
    id_ = event_id or uuid7()
    await runtime.log.append(Event(id=id_, source=SOURCE, tenant=tenant, thread=thread, user=user, data=data))
    return await show_preferences(runtime, tenant, user)


def checked(fields: Mapping[str, Any], most_days: int | None) -> UserPreferences:
    """Returns the fields as preferences. most_days: how long the server keeps turns. Raises InvalidPreference."""
    try:
        preferences = UserPreferences(**fields)
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        values = VALUES_ZH.get(name, _OWN_VALUE_ZH)
        raise InvalidPreference(f"{name}: {problem['msg'].lower()}", f"偏好 {name} 的值应为 {values}") from None
    zone, days = preferences.timezone, preferences.retention_days
    try:
        zone_named(zone or "UTC")
    except ValueError as error:
        zh = f"偏好 timezone：没有时区 {zone!r}；请给出 UTC 或 Asia/Shanghai 这样的名称"
        raise InvalidPreference(f"timezone: {error}", zh) from None
    if most_days is not None and days is not None and days > most_days:
        raise InvalidPreference(
            f"retention_days: turns are kept for {most_days} days here, so it can be at most {most_days}",
            f"偏好 retention_days：这里只保留 {most_days} 天的对话，因此最多为 {most_days}",
        )
    return preferences


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values by names in snake_case; the values of an object such as schoolPreferences get names that begin
    with school_."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        snake = re.sub(r"(?<=[a-z0-9])[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        subject, ends, _ = snake.partition("_preferences")
        nested = isinstance(value, Mapping) and ends
        flat |= {f"{subject}_{key}": part for key, part in _flat(value).items()} if nested else {snake: value}
    return flat


class Preferred(Protocol):
    @property
    def content(self) -> str: ...
    @property
    def dedupe_key(self) -> str | None: ...


class Preferences(NamedTuple):
    """A user's preferences. named: preferences with a known name: the value set by hand, otherwise the value said last.
    others: the contents of all other preferences, most recently said first."""

    named: UserPreferences = UserPreferences()
    others: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns the preferences as lines of the prompt, the named ones first."""
        named = self.named.model_dump(exclude_none=True, exclude=_NOT_OF_ANSWERS)
        quiet = ["suggestions: only when asked for"] if self.named.enable_suggestions is False else []
        return [*(f"{name.replace('_', ' ')}: {_said(value)}" for name, value in named.items()), *quiet, *self.others]


def user_preferences(said: Iterable[Preferred], by_hand: UserPreferences = UserPreferences()) -> Preferences:
    """Returns preferences by name. said: valid PREFERENCE memories, most recently said first; the most recent value of
    each name counts."""
    by_name: dict[str, str] = {}
    others: list[str] = []
    for memory in said:
        read = _read(memory)
        by_name = read | by_name
        if not read:
            others.append(memory.content)
    named = by_name | by_hand.model_dump(exclude_none=True)
    return Preferences(UserPreferences.model_validate(named), tuple(others))


def _said(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _read(memory: Preferred) -> dict[str, str]:
    """Returns the named preferences that a memory states; {} if the memory is negated."""
    if _NOT.search(memory.content) or not _is_about_answers(memory):
        return {}
    tables = (("communication_style", _STYLES), ("response_length", _LENGTHS), ("language", _LANGUAGES))
    read = {name: _first(table, memory.content) for name, table in tables}
    return {name: value for name, value in read.items() if value is not None}


def _is_about_answers(memory: Preferred) -> bool:
    by_rule = (memory.dedupe_key or "").startswith("answer-")
    return by_rule or bool(_ABOUT_ANSWERS.search(memory.content)) or _first(_LANGUAGES, memory.content) is not None


def _first(patterns: dict[str, str], text: str) -> str | None:
    return next((name for name, pattern in patterns.items() if re.search(pattern, text, re.IGNORECASE)), None)


async def preferences_of(conn: Connection, tenant: str, user: str, now: datetime) -> Preferences:
    """Returns a user's preferences. The user's statements count only if the user allows memories. Raises
    InvalidToken."""
    thread = memory_thread(user)
    by_hand = await preferences_set(conn, tenant, thread)
    if by_hand.enable_memory is False:
        return Preferences(by_hand)
    return await with_said(conn, tenant, thread, now, by_hand)


async def with_said(conn: Connection, tenant: str, thread: str, now: datetime, by_hand: UserPreferences) -> Preferences:
    """Returns the preferences set by hand together with those that the memories of a memory thread state."""
    return user_preferences(await valid_memories(conn, tenant, thread, now, ("PREFERENCE",), _MOST_SAID), by_hand)
