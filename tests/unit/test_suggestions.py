"""Suggested questions follow from the rules in an agent's file and the results of its tools."""

import json
from typing import Any

import pytest

from turnlog.agent.answering.pieces import Round
from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.models.protocol import Completion
from turnlog.agent.team.suggestions import suggestions_of
from turnlog.agent.team.teams import Agent, Suggestion, bundled_team
from turnlog.events.contracts import ToolCall

MADE = Completion("", (), 0, 0, 0.0, "m", "p", 0.0)
ORDER = {"number": "A101", "parts": [{"name": "bell\nand whistle", "count": 2}], "paid": True}


def ran(is_error: bool = False, **results: Any) -> list[Round]:
    made = [
        (ToolCall(id=name, name=name, arguments="{}"), ToolResult(json.dumps(value), is_error=is_error))
        for name, value in results.items()
    ]
    return [Round(MADE, tuple(made)), Round(MADE)]


def suggested(rules: list[dict[str, Any]], rounds: list[Round], locale: str = "en") -> tuple[str, ...]:
    agent = Agent(type="a", name="A", prompt="p", suggestions=tuple(Suggestion(**rule) for rule in rules))
    return suggestions_of(agent, rounds, locale)


def test_a_rule_fits_the_tools_that_answered() -> None:
    rules: list[dict[str, Any]] = [
        {"texts": {"en": "always"}},
        {"texts": {"en": "after"}, "after": ["find_order", "other"]},
        {"texts": {"en": "without"}, "without": ["find_order"]},
    ]
    assert suggested(rules, ran(find_order=ORDER)) == ("always", "after")
    assert suggested(rules, ran(other=1)) == ("always", "after", "without")
    assert suggested(rules, ran(is_error=True, find_order=ORDER)) == ("always", "without")
    assert suggested(rules, []) == ("always", "without")


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("Where is {find_order.number}?", "Where is A101?"),
        ("{find_order.parts[0].count} × {find_order.parts[0].name}", "2 × bell and whistle"),
        ("{find_order.parts[1].name}", None),
        ("{find_order.parts}", None),
        ("{find_order.paid}", None),
        ("{find_order.number.name}", None),
        ("{other.number}", None),
        ("{no reference}", "{no reference}"),
    ],
)
def test_a_text_may_name_a_part_of_a_result(text: str, filled: str | None) -> None:
    assert suggested([{"texts": {"en": text}}], ran(find_order=ORDER)) == ((filled,) if filled else ())


def test_a_part_of_a_result_is_short_and_read_once() -> None:
    rules = [{"texts": {"en": "Of {note}"}}]
    assert suggested(rules, ran(note="x" * 500)) == (f"Of {'x' * 80}",)
    assert suggested(rules, ran(note="{find_order.number}", find_order=ORDER)) == ("Of {find_order.number}",)


@pytest.mark.parametrize(("locale", "text"), [("zh", "好"), ("zh-TW", "好"), ("fr", "good"), ("en", "good")])
def test_a_text_is_in_the_persons_language_or_english(locale: str, text: str) -> None:
    assert suggested([{"texts": {"zh": "好", "en": "good"}}], [], locale) == (text,)
    assert suggested([{"texts": {"de": "gut"}}], [], locale) == ("gut",)


def test_there_are_three_at_most_and_none_twice() -> None:
    rules = [{"texts": {"en": text}} for text in ("a", "b", "a", "c", "d")]
    assert suggested(rules, []) == ("a", "b", "c")


def test_every_agent_of_the_bundled_team_has_some_in_two_languages() -> None:
    for agent in bundled_team().agents.values():
        assert suggestions_of(agent, [], "en")
        assert all(set(rule.texts) == {"zh", "en"} for rule in agent.suggestions)
