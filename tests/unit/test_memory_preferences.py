"""Preferences are derived from memories: style, language, length of answers, and others."""

from dataclasses import dataclass

import pytest

from turnlog.agent.memory.preferences import Preferences, user_preferences
from turnlog.events.contracts import UserPreferences


@dataclass(frozen=True)
class Preference:
    content: str
    dedupe_key: str | None = None


def fold(*contents: str) -> Preferences:
    return user_preferences(Preference(content) for content in contents)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("I prefer short answers", UserPreferences(response_length="brief")),
        ("Please explain in detail", UserPreferences(response_length="detailed")),
        ("Answer me in Chinese", UserPreferences(language="zh")),
        ("I prefer English replies", UserPreferences(language="en")),
        ("Use a casual tone", UserPreferences(communication_style="casual")),
        ("请用中文回答", UserPreferences(language="zh")),
        ("我喜欢简短的回答", UserPreferences(response_length="brief")),
        ("回答要详细一点", UserPreferences(response_length="detailed")),
        ("说话请专业一点", UserPreferences(communication_style="professional")),
        ("请用英文简洁地回答", UserPreferences(response_length="brief", language="en")),
    ],
)
def test_preferences_for_answers_are_recognised(content: str, expected: UserPreferences) -> None:
    assert fold(content) == Preferences(expected)


def test_the_latest_preference_counts() -> None:
    assert fold("I prefer detailed answers", "I prefer short answers").named.response_length == "detailed"


@pytest.mark.parametrize(
    "content",
    ["I like short walks", "I love detailed maps", "我喜欢简单的生活", "Don't answer in English", "不要用英文回答"],
)
def test_preferences_that_are_not_about_answers_are_listed_as_others(content: str) -> None:
    assert fold(content) == Preferences(others=(content,))


def test_a_rules_key_says_that_it_is_about_answers() -> None:
    assert user_preferences([Preference("Keep it short", "answer-length")]).named.response_length == "brief"


def test_manual_preferences_override_stated_ones() -> None:
    by_hand = UserPreferences(response_length="detailed", school_regions=("US", "UK"), enable_suggestions=False)
    preferences = user_preferences([Preference("请用中文简短地回答"), Preference("I like quiet places")], by_hand)
    assert preferences.lines() == [
        "response length: detailed",
        "language: zh",
        "school regions: US, UK",
        "suggestions: only when asked for",
        "I like quiet places",
    ]


def test_without_memories_there_are_no_preferences() -> None:
    assert fold() == Preferences()
