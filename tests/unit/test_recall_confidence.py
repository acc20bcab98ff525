"""Confidence estimates by words alone whether a scope answers a question."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from turnlog.agent.models.prompts import DOUBT, DOUBT_ZH
from turnlog.agent.recall import Query, ScopeIndex, rank
from turnlog.agent.recall.confidence import LOW, Evidence, doubt, evidence_for
from turnlog.agent.recall.questions import read_question
from turnlog.agent.recall.scope import Chunks
from turnlog.projectors.models.terms import terms

START = datetime(2023, 5, 8, tzinfo=UTC)
TALK = (
    "Ann: I adopted a grey kitten from the shelter",
    "Bob: My guitar needs new strings",
    "Ann: The kitten sleeps on the piano",
    "Bob: I play guitar in a jazz band on Fridays",
    "Ann: Work was tiring this week",
    "Bob: The band has a concert in Leeds",
)


def scope(*said: str) -> ScopeIndex:
    """Returns a scope with a chunk for each `speaker: text`, an hour apart."""
    pairs = [line.split(": ", 1) for line in said]
    return ScopeIndex.of_chunks(
        Chunks.of(
            texts=[text for _, text in pairs],
            terms=[terms(text) for _, text in pairs],
            speakers=[speaker for speaker, _ in pairs],
            times=[START + timedelta(hours=n) for n in range(len(pairs))],
        )
    )


def evidence(query: str, index: ScopeIndex, allowed: list[bool] | None = None) -> Evidence:
    usable = None if allowed is None else np.array(allowed)
    ranked = rank(Query(query), index, allowed=usable)
    made = evidence_for(query, index, ranked[0].chunk if ranked else None, usable)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("answered", "unanswered"),
    [
        ("What did Ann adopt from the shelter?", "What did Ann study at university in Oslo?"),
        ("Which instrument does Bob play in the jazz band?", "Which instrument does Ann play in the jazz band?"),
    ],
    ids=["never-said", "said-by-the-other"],
)
def test_questions_about_stated_facts_have_high_confidence_and_others_low(answered: str, unanswered: str) -> None:
    index = scope(*TALK)
    assert evidence(answered, index).confidence > LOW > evidence(unanswered, index).confidence


def test_chinese_questions_are_judged_too() -> None:
    index = scope("user: 我在上海的银行工作", "user: 周末我去杭州爬山了", "user: 妈妈做了红烧肉")
    assert evidence("我在哪里的银行工作？", index).confidence > LOW
    assert evidence("我的大学专业是哪个方向的？", index).confidence < LOW


def test_only_turns_that_may_be_found_are_evidence() -> None:
    index = scope(*TALK)
    asked = "Who plays guitar in a jazz band?"
    assert evidence(asked, index, [True, True, True, False, False, False]).held < evidence(asked, index).held


def test_a_memory_that_contains_the_words_is_evidence_too() -> None:
    university = evidence("Which university did Ann study at?", scope(*TALK))
    assert university.also_in(["Ann studied at a university in Oslo"]).confidence > university.confidence
    assert university.also_in([]) == university


def test_a_question_without_words_to_look_for_is_not_judged() -> None:
    assert evidence_for("Ann?", scope(*TALK), None) is None


def test_the_time_named_by_a_question_is_not_one_of_its_words() -> None:
    [part] = read_question("What did Ann adopt last week?", START).parts
    assert terms(part.undated) == terms("What did Ann adopt ?")


def test_the_warning_is_in_the_language_of_the_question_and_only_for_low_confidence() -> None:
    index = scope(*TALK)
    asked = "What did Ann study at university in Oslo?"
    unsure = evidence(asked, index)
    assert doubt(unsure, asked, []) == DOUBT
    assert doubt(unsure, "安大学学的是什么？", []) == DOUBT_ZH
    assert doubt(unsure, asked, ["Ann went to university in Oslo to study law"]) is None
    assert doubt(evidence("What did Ann adopt from the shelter?", index), "x", []) is None
    assert doubt(None, asked, []) is None


@pytest.mark.parametrize(
    ("text", "asks"), [("Where do I live?", True), ("I live in Leeds.", False), ("我住哪？", True)]
)
def test_questions_are_distinguished_from_statements(text: str, asks: bool) -> None:
    assert read_question(text).asks is asks
