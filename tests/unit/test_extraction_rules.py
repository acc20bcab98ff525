"""Tests the shipped rules in English and Chinese: keys, strategies, lifetimes, quotes and entities."""

from datetime import timedelta

import pytest
from helpers.dated_claims import decided
from helpers.extraction import FIRST_TURN_AT, apply_rules, contents, extractor_turn, found, rejection_reasons

from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.proposals import candidates
from turnlog.agent.memory.extraction.rules import load_rules


def test_a_later_answer_to_the_same_question_has_the_same_key() -> None:
    """A key with the value, such as `gpa:${value}`, would keep two GPAs valid under KEEP_LATEST."""
    first, second = found("My GPA is 3.6", "我的GPA是3.8")
    assert (first.dedupe_key, second.dedupe_key, second.strategy) == ("gpa", "gpa", "KEEP_LATEST")


def test_liking_and_no_longer_liking_contradict_each_other_and_other_tastes_do_not() -> None:
    keys = [finding.dedupe_key for finding in found("I like coffee.", "I no longer like Coffee.", "I don't like tea.")]
    assert keys == ["taste:coffee", "taste:coffee", "taste:tea"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("I like coffee.", "I don't like coffee any more."),
        ("I hate coffee.", "I like coffee."),
        ("我喜欢喝茶。", "我不喜欢喝茶了。"),
    ],
)
def test_the_opposite_of_a_taste_ends_it_and_does_not_confirm_it(first: str, second: str) -> None:
    findings = found(first, second)
    held = decided(candidates("default", "ann", findings))
    assert held.valid == [findings[1].content]


def test_leaving_an_employer_ends_that_job_and_a_new_job_is_valid() -> None:
    held = decided(candidates("default", "ann", found("I work at Amazon.", "I resigned from Amazon last week.")))
    assert held.valid == ["Has left Amazon"]
    held = decided(candidates("default", "ann", found("I quit Amazon last week and I joined Lumen.")))
    assert held.valid == ["Works at Lumen"]


def test_the_best_result_of_a_test_is_valid() -> None:
    assert {finding.strategy for finding in found("SAT 1480", "TOEFL 104", "ACT成绩33", "雅思7.5")} == {"KEEP_HIGHEST"}


def test_the_rules_cover_the_required_facts_and_many_more_in_both_languages() -> None:
    rules = load_rules().rules
    assert len(rules) >= 45
    assert {"gpa", "sat", "act", "toefl", "ielts", "class-rank", "target-school", "early-decision", "major"} <= {
        rule.id for rule in rules
    }
    assert all(rule.rule.en and rule.rule.zh for rule in rules)
    assert {rule.rule.type for rule in rules} == {"FACT", "PREFERENCE", "DECISION", "FEEDBACK"}


def test_a_memory_lives_as_long_as_its_rule_says_from_when_it_was_said() -> None:
    [gpa] = found("My GPA is 3.8")
    assert gpa.expires_at == gpa.source.said_at + timedelta(days=365)
    assert abs(gpa.source.said_at - FIRST_TURN_AT) < timedelta(hours=1)


def test_the_quote_is_the_exact_sentence_of_the_turn() -> None:
    text = "Well…  I'm back!  我叫张伟，很高兴认识你。 I live in\tBerlin, and you?"
    looked = apply_rules(text)
    assert [finding.source.quote for finding in looked.findings] == [
        "我叫张伟，很高兴认识你。",
        "I live in\tBerlin, and you?",
    ]
    assert all(finding.source.quote in text for finding in looked.findings)


@pytest.mark.parametrize("text", ["My GPA is 3.80.", "I live in Berlin now!", "我对花生过敏。", "我现在住在北京。"])
def test_a_text_that_is_only_one_claim_is_one_finding(text: str) -> None:
    turn = extractor_turn(text)
    extractor = Extractor(load_rules())
    assert [extractor.only_finding(turn)] == list(extractor.extract([turn]).findings)


@pytest.mark.parametrize(
    "text",
    [
        "My GPA is 3.5 and my locker code is 8812",
        "I am allergic to nuts, my EpiPen is in the red bag",
        "I live in Berlin. The key is under the mat.",
        "我的GPA是3.5，住在杭州",
        "The spare key is under the blue pot",
        "Is my GPA 3.8?",
    ],
)
def test_a_text_that_says_more_than_one_claim_is_not_one_finding(text: str) -> None:
    assert Extractor(load_rules()).only_finding(extractor_turn(text)) is None


def test_a_rejection_says_why() -> None:
    assert rejection_reasons("Is my GPA 3.8?") == {"question"}
    assert rejection_reasons("If I wanted, my GPA is 3.8") == {"hypothetical"}
    assert rejection_reasons("Tom said my GPA is 3.8") == {"reported"}
    assert rejection_reasons("My GPA is 9.8") == {"invalid-value"}
    assert rejection_reasons("The place where I live in Berlin is small") == {"inside-a-clause"}
    assert rejection_reasons('The song "I live in Berlin" is old') == {"quoted"}
    assert rejection_reasons("Today I plan to move house") == {"excluded"}


def test_entities_come_with_the_memories_that_name_them() -> None:
    [sister, school] = found("My sister's name is Mia.", "I want to apply to Stanford.")
    assert [(entity.type, entity.name, entity.attributes) for entity in (*sister.entities, *school.entities)] == [
        ("PERSON", "Mia", {"relation": "sister"}),
        ("SCHOOL", "Stanford", {}),
    ]


def test_a_very_long_turn_and_a_very_long_sentence_are_bounded() -> None:
    assert contents("a" * 1_000_000 + ". My name is Ann.") == []
    assert contents("My name is Ann. " + "word " * 100_000) == ["Name is Ann"]


@pytest.mark.parametrize(
    ("strategy", "first", "second", "outcome"),
    [
        ("KEEP_LATEST", "I live in Berlin.", "I live in Lisbon.", ["superseded", "valid"]),
        ("KEEP_LATEST", "I live in Paris.", "I just moved from Paris to Berlin.", ["superseded", "valid"]),
        ("KEEP_HIGHEST", "My SAT score is 1480.", "My SAT score is 1390.", ["valid", "rejected"]),
        ("KEEP_OLDEST", "I come from Leeds.", "I'm from Berlin.", ["valid", "rejected"]),
        ("MERGE", "My hobbies are chess and rowing.", "My hobby is pottery.", ["merged", "merged", "valid"]),
        ("KEEP_BOTH", "I speak French.", "我会说日语。", ["valid", "valid"]),
        ("ASK_USER", "My birthday is May 3rd.", "我的生日是5月4日。", ["valid", "pending"]),
    ],
)
def test_each_strategy_is_that_of_a_rule(strategy: str, first: str, second: str, outcome: list[str]) -> None:
    said = candidates("default", "ann", found(first, second))
    assert [candidate.strategy for candidate in said] == [strategy] * 2
    rows = sorted(decided(said).rows, key=lambda row: row.origin == "compaction")
    assert [row.closed_reason or row.status for row in rows] == outcome


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Hi, I'm Marco. I moved to Genoa last week.", "Name is Marco"),
        ("I'm Marco.", "Name is Marco"),
        ("Good morning, I'm Brian!", "Name is Brian"),
        ("Hello there, I am Anna, nice to meet you", "Name is Anna"),
        ("你好，我叫小梅，我对花生过敏", "名字是小梅"),
        ("我叫小梅。", "名字是小梅"),
        ("你好，我是小王。", "名字是小王"),
    ],
)
def test_a_greeting_or_a_separate_sentence_states_a_name(text: str, name: str) -> None:
    assert name in contents(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "I'm Tired.",
            "Hi, I'm Sick.",
            "I'm Korean.",
            "Hello! I'm Canadian",
            "I'm Vegan.",
            "I'm Virgo.",
            "Hi, I'm Ready, let's go",
        ),
        *("He said: I'm Anna.", "I'm Marco if you like.", "我叫外卖", "我叫妈妈", "你好，我是小白", "你好，我是小学生"),
    ],
)
def test_a_state_or_a_kind_of_person_is_not_a_name(text: str) -> None:
    assert not [content for content in contents(text) if content.startswith(("Name", "名字"))]
