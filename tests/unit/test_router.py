"""Tests the fast router: scores, threshold, entire words, simple answers, and the labelled questions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.team.router import THRESHOLD, Rule, SimpleAnswer, route
from turnlog.agent.team.teams import bundled_team

RULE = Rule("pets", patterns=("my (cat|dog)", "feed"), keywords=("cat", "dog", "vet", "food", "猫"), confidence=0.9)


@pytest.mark.parametrize(
    ("question", "confidence", "matched"),
    [
        ("nothing here", 0.0, ()),
        ("a vet", 0.135, ("vet",)),
        ("a vet for a dog", 0.27, ("dog", "vet")),
        ("food from the vet for a dog", 0.585, ("dog", "vet", "food")),
        ("feed", 0.45, ()),
        ("feed my cat", 0.585, ("cat",)),
        ("feed my cat food", 0.72, ("cat", "food")),
        ("my cat, my dog, vet, food, 猫", 1.0, ("cat", "dog", "vet", "food", "猫")),
    ],
)
def test_patterns_and_keywords_add_up_and_are_multiplied(
    question: str, confidence: float, matched: tuple[str, ...]
) -> None:
    routing = route(question, [RULE])
    assert (routing.confidence, routing.matched_keywords) == (confidence, matched)
    assert routing.should_use_llm == (confidence < THRESHOLD)
    assert routing.agent == ("pets" if confidence else None)


def test_patterns_count_once_and_confidence_is_at_most_one() -> None:
    assert route("feed my dog, feed my cat", [Rule("p", RULE.patterns)]).confidence == 0.45
    assert route("cat dog vet food 猫 feed", [Rule("p", RULE.patterns, RULE.keywords, 1.0)]).confidence == 1.0


@pytest.mark.parametrize("question", ["use the edge", "tips", "red", "ed1", "9ed"])
def test_latin_keywords_are_whole_words(question: str) -> None:
    assert route(question, [Rule("timeline", keywords=("ed", "ps"))]).matched_keywords == ()


@pytest.mark.parametrize("question", ["ED 截止", "我想用ED申请", "ＥＤ", "ed?", "ed_2"])
def test_latin_keywords_are_found_beside_other_signs(question: str) -> None:
    assert route(question, [Rule("timeline", keywords=("ed",))]).matched_keywords == ("ed",)


def test_the_best_rule_wins_and_the_first_of_equal_ones() -> None:
    rules = [Rule("a", keywords=("x",)), Rule("b", keywords=("x", "y")), Rule("c", keywords=("x", "y"))]
    assert route("x y", rules).agent == "b"


def test_a_simple_answer_needs_no_agent_and_no_model() -> None:
    routing = route("feed my cat food", [RULE], [SimpleAnswer("^FEED", "Twice a day.")])
    assert (routing.agent, routing.confidence, routing.matched_keywords) == (None, 1.0, ("simple_qa",))
    assert (routing.should_use_llm, routing.answer) == (False, "Twice a day.")


def test_a_clear_question_goes_to_its_specialist() -> None:
    routing = route("帮我润色文书，再看看大纲", bundled_team().rules)
    assert (routing.agent, routing.should_use_llm) == ("essay", False)
    assert set(routing.matched_keywords) == {"文书", "润色", "大纲"}


def test_a_question_that_names_one_keyword_is_left_to_the_model() -> None:
    routing = route("你好，文书", bundled_team().rules)
    assert (routing.agent, routing.should_use_llm) == ("essay", True)


@given(st.text(), st.lists(st.text(min_size=1), max_size=6), st.floats(0.01, 1))
def test_any_text_gets_a_confidence_between_zero_and_one(text: str, keywords: list[str], confidence: float) -> None:
    routing = route(text, [Rule("a", keywords=tuple(keywords), confidence=confidence)])
    assert 0 <= routing.confidence <= 1
    assert routing.should_use_llm == (routing.confidence < THRESHOLD)
