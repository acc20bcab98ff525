"""A new memory is compared by key, words and similarity; users also change memories by hand."""

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from helpers.dated_claims import DecidedMemories, claim, day, decided, source

from turnlog.agent.memory.deciding.claims import same_claim, value_of
from turnlog.agent.memory.deciding.conflicts import decide
from turnlog.agent.memory.deciding.revisions import (
    Answer,
    MemoryNotInUse,
    NothingToRevert,
    QuestionSettled,
    answered,
    edited,
    reverted,
)
from turnlog.events.contracts import (
    Derivation,
    Memory,
    MemoryConfirmed,
    MemoryConflictRaised,
    MemoryForgotten,
    MemoryRecorded,
)

EDIT = UUID(int=7)


def gpa(value: str, on: float, **fields: Any) -> Memory:
    return claim(f"GPA is {value}", on, value=value, dedupe_key="gpa", **fields)


def city(name: str, on: float) -> Memory:
    return claim(f"我住在{name}", on, value=name, dedupe_key="city")


def test_the_latest_statement_is_valid_and_the_previous_one_points_to_it() -> None:
    after = decided([city("北京", 0), city("上海", 9)])
    [before, now] = after.rows
    assert (before.status, before.valid_to, before.replaced_by) == ("closed", day(9), now.id)
    assert (before.closed_reason, after.valid, after.on(5)) == ("superseded", ["我住在上海"], ["我住在北京"])


def test_an_earlier_statement_that_arrives_later_gets_its_interval_in_the_past() -> None:
    after = decided([city("北京", 0), city("广州", 9), city("上海", 5)])
    assert [after.on(n) for n in (1, 6, 10)] == [["我住在北京"], ["我住在上海"], ["我住在广州"]]
    assert [row.replaced_by for row in after.rows] == [after.rows[1].id, after.rows[2].id, None]


def test_the_same_value_again_is_one_memory_with_one_more_source() -> None:
    after = decided([gpa("3.80", 0), gpa("3.8", 9, importance=0.95)])
    [row] = after.rows
    assert [source.said_at for source in row.sources] == [day(0), day(9)]
    assert (row.valid_from, row.confirmed_at, row.importance) == (day(0), day(9), 0.95)


def test_a_value_that_is_stated_again_is_valid_from_then_on() -> None:
    after = decided([gpa("3.8", 0), gpa("3.5", 3), gpa("3.8", 6)])
    assert [after.on(n) for n in (1, 4, 7)] == [["GPA is 3.8"], ["GPA is 3.5"], ["GPA is 3.8"]]
    assert len(after.rows) == 3


def test_a_statement_between_two_of_another_value_separates_them() -> None:
    after = decided([gpa("3.8", 0), gpa("3.8", 6), gpa("3.5", 3)])
    assert [after.on(n) for n in (1, 4, 7)] == [["GPA is 3.8"], ["GPA is 3.5"], ["GPA is 3.8"]]


def test_the_highest_is_valid_since_it_was_stated() -> None:
    after = decided([gpa(value, on, strategy="KEEP_HIGHEST") for on, value in enumerate(["3.5", "3.9", "3.7", "10"])])
    assert [after.on(n) for n in range(4)] == [["GPA is 3.5"], ["GPA is 3.9"], ["GPA is 3.9"], ["GPA is 10"]]
    assert next(row for row in after.rows if row.value == "3.7").closed_reason == "rejected"


def test_the_oldest_is_valid_even_when_it_arrives_last() -> None:
    after = decided([gpa(value, on, strategy="KEEP_OLDEST") for value, on in (("3.5", 5), ("3.9", 7), ("3.1", 2))])
    assert after.valid == ["GPA is 3.1"]
    assert after.on(6) == ["GPA is 3.1"]


def test_merging_joins_different_values_and_keeps_the_members() -> None:
    hobbies = [
        claim(words, on, value=words, dedupe_key="hobbies", strategy="MERGE")
        for on, words in ((0, "爬山"), (3, "摄影"), (5, "爬山"), (8, "下棋"))
    ]
    after = decided(hobbies)
    assert after.valid == ["爬山；摄影；下棋"]
    assert [after.on(n) for n in (1, 4, 9)] == [["爬山"], ["爬山；摄影"], ["爬山；摄影；下棋"]]
    [merged] = [row for row in after.rows if row.status == "valid"]
    assert [source.quote for source in merged.sources] == ["爬山", "摄影", "下棋"]
    after.say(claim("摄影", 20, value="摄影", dedupe_key="hobbies", strategy="MERGE"))
    assert (after.row(merged.id).confirmed_at, after.row(merged.id).valid_from) == (day(20), day(8))
    assert {row.content: row.closed_reason for row in after.rows if row.origin == "rule"} == dict.fromkeys(
        ("爬山", "摄影", "下棋"), "merged"
    )


def test_both_are_kept_if_the_rule_says_so() -> None:
    after = decided([claim(words, on, dedupe_key="likes", strategy="KEEP_BOTH") for on, words in enumerate("茶酒茶")])
    assert sorted(after.valid) == ["茶", "酒"]


def test_the_user_is_asked_and_until_then_the_old_memory_is_valid() -> None:
    after = decided([gpa("3.8", 0, strategy="ASK_USER"), gpa("3.5", 3, strategy="ASK_USER")])
    raised = after.events[-1]
    assert isinstance(raised, MemoryConflictRaised)
    assert (raised.against, after.valid) == ((after.rows[0].id,), ["GPA is 3.8"])
    assert raised.question == "Remembered so far: “GPA is 3.8”. New: “GPA is 3.5”. Which one is right?"
    again = after.say(gpa("3.5", 4, strategy="ASK_USER"))
    assert isinstance(again.events[-1], MemoryConfirmed), "one question, with one more source"


def test_a_chinese_question_is_asked_in_chinese() -> None:
    [raised] = decide(city("上海", 2).model_copy(update={"strategy": "ASK_USER"}), decided([city("北京", 0)]).rows)
    assert isinstance(raised, MemoryConflictRaised)
    assert raised.question == "之前记录的是“我住在北京”，现在又说“我住在上海”。以哪个为准？"


@pytest.mark.parametrize(
    ("answer", "valid", "on_day_4"),
    [
        ("new", ["GPA is 3.5"], ["GPA is 3.5"]),
        ("old", ["GPA is 3.8"], ["GPA is 3.8"]),
        ("both", ["GPA is 3.8", "GPA is 3.5"], ["GPA is 3.8", "GPA is 3.5"]),
    ],
)
def test_an_answer_settles_the_question(answer: Answer, valid: list[str], on_day_4: list[str]) -> None:
    after = decided([gpa("3.8", 0, strategy="ASK_USER"), gpa("3.5", 3, strategy="ASK_USER")])
    raised = after.events[-1]
    assert isinstance(raised, MemoryConflictRaised)
    question = RaisedQuestion(raised.conflict_id, raised.memory.id, raised.against)
    after.apply(answered(question, after.rows, answer, day(5)))
    assert (after.valid, after.on(4), after.on(1)) == (valid, on_day_4, ["GPA is 3.8"])
    with pytest.raises(QuestionSettled):
        answered(question, after.rows, answer, day(6))


def test_a_question_about_an_expired_memory_can_still_be_settled() -> None:
    after = decided([gpa("3.8", 0, strategy="ASK_USER"), gpa("3.5", 3, strategy="ASK_USER", expires_at=day(9))])
    raised = after.events[-1]
    assert isinstance(raised, MemoryConflictRaised)
    question = RaisedQuestion(raised.conflict_id, raised.memory.id, raised.against)
    for answer in ("new", "both"):
        with pytest.raises(QuestionSettled, match="answer 'old'"):
            answered(question, after.rows, answer, day(9))
    after.apply(answered(question, after.rows, "old", day(9)))
    assert (after.valid, after.on(4)) == (["GPA is 3.8"], ["GPA is 3.8"])


@dataclass(frozen=True)
class RaisedQuestion:
    conflict_id: UUID
    memory_id: UUID
    against: tuple[UUID, ...]


def test_an_expired_memory_does_not_compete() -> None:
    first = gpa("3.8", 0, strategy="ASK_USER", expires_at=day(10))
    assert isinstance(decided([first, gpa("3.5", 11, strategy="ASK_USER")]).events[-1], MemoryRecorded)
    oldest = [gpa("3.8", 0, strategy="KEEP_OLDEST", expires_at=day(10)), gpa("3.5", 11, strategy="KEEP_OLDEST")]
    assert decided(oldest).on(12) == ["GPA is 3.8", "GPA is 3.5"], "readers end the first by its time to live"
    assert decided(oldest).rows[0].expires_at == day(10)


def test_a_forgotten_memory_does_not_compete_and_its_source_is_not_recorded_again() -> None:
    after = decided([claim("I like tea", 0)])
    [row] = after.rows
    after.put(replace(row, status="forgotten", content="", value=None, dedupe_key=None, closed_reason="forgotten"))
    assert after.say(claim("I like tea", 0)).events[1:] == []
    renamed = claim("I like tea", 0).model_copy(update={"id": UUID(int=5)})
    assert after.say(renamed).events[1:] == []
    assert after.say(claim("I like tea", 8)).valid == ["I like tea"]


def test_the_interval_of_a_forgotten_version_stays_empty() -> None:
    after = decided([gpa("3.8", 0), gpa("3.5", 3)])
    late = after.rows[1]
    after.put(replace(late, status="forgotten", content="", value=None, dedupe_key=None, valid_to=day(5)))
    after.say(gpa("3.9", 8))
    assert [after.on(n) for n in (1, 6, 9)] == [["GPA is 3.8"], [], ["GPA is 3.9"]]


def test_the_same_words_without_a_key_are_confirmed_regardless_of_case_and_width() -> None:
    after = decided([claim("I like Tea.", 0), claim("i like ｔｅａ", 3)])
    assert (after.valid, len(after.rows[0].sources)) == (["I like Tea."], 2)


def test_the_same_words_of_another_kind_are_another_memory() -> None:
    assert len(decided([claim("I like tea", 0), claim("I like tea", 1, kind="PREFERENCE")]).valid) == 2


def test_a_memory_with_a_key_replaces_the_same_words_without_one() -> None:
    bare = claim("GPA is 3.8", 0, "bare")
    after = decided([bare, gpa("3.8", 2)])
    assert (after.rows[0].closed_reason, after.valid) == ("duplicate", ["GPA is 3.8"])
    assert decided([gpa("3.8", 0), claim("GPA is 3.8", 2, "bare")]).rows[0].dedupe_key == "gpa"


def test_an_archived_memory_that_is_stated_again_is_valid_again() -> None:
    after = decided([gpa("3.8", 0)])
    after.put(replace(after.rows[0], status="archived", archived_at=day(200)))
    after.say(gpa("3.8", 201))
    assert (after.rows[0].status, after.rows[0].archived_at) == ("valid", None)


def test_similar_memories_with_the_same_claim_are_decided_by_the_strategy() -> None:
    after = decided([claim("I love hiking in the mountains", 0)])
    again = claim("I really love mountain hiking", 3)
    assert after.say(again, similar=[(after.rows[0], 0.93)]).valid == ["I really love mountain hiking"]
    assert after.on(1) == ["I love hiking in the mountains"]


def test_a_similarity_of_ninety_percent_is_not_enough() -> None:
    after = decided([claim("I love hiking in the mountains", 0)])
    after.say(claim("I really love mountain hiking", 3), similar=[(after.rows[0], 0.90)])
    assert len(after.valid) == 2


DIFFERENT = [
    ("I was born in 1990", "I was born in 1991"),
    ("I have two cats", "I have three cats"),
    ("I eat meat every day", "I don't eat meat any more"),
    ("I smoke when I work", "I no longer smoke when I work"),
    ("我喜欢吃辣", "我不喜欢吃辣"),
    ("我养了两只猫", "我养了三只猫"),
    ("我住在北京", "我住在上海"),
    ("I live in Paris", "I live in Rome"),
    ("My sister Ann studies law at Yale", "My sister Ann studies law at Harvard"),
    ("I like tea", "I like coffee"),
    ("我最喜欢的书是《三体》", "我最喜欢的书是《活着》"),
    ("My manager is 'Bob' from sales", "'Tom' from sales is my manager"),
    ("I prefer tea over coffee", "I really prefer coffee over tea"),
    ("I am taller than my sister", "My sister is taller than I am"),
    ("I moved from Rome to Paris", "I moved from Paris to Rome"),
    ("比起猫我更喜欢狗", "比起狗我更喜欢猫"),
    ("我从北京搬到上海", "我从上海搬到北京"),
]


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_similarity_alone_ends_no_memory(first: str, second: str) -> None:
    assert not same_claim(first, second)
    assert not same_claim(second, first)
    after = decided([claim(first, 0)])
    after.say(claim(second, 3), similar=[(after.rows[0], 0.99)])
    assert len(after.valid) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("I love hiking in the mountains", "I really love mountain hiking"),
        ("I'm a vegetarian.", "i'm a vegetarian"),
        ("我特别喜欢喝茶", "我喜欢喝茶"),
        ("My daughter started school in 2024", "In 2024 my daughter started school"),
        ("I drive to work on Mondays", "On Mondays I drive to work"),
        ("I drink some tea before I sleep", "I drink tea before I sleep"),
        ("平时周末我会去爬山", "我周末会去爬山"),
    ],
)
def test_different_words_may_make_the_same_claim(first: str, second: str) -> None:
    assert same_claim(first, second)


@pytest.mark.parametrize(
    ("value", "same"), [("3.80", "3.8"), ("1,500", "1500"), ("+4", "4.0"), ("ＢＯＢ ", "bob"), ("0.0", "-0")]
)
def test_values_are_compared_in_normal_form(value: str, same: str) -> None:
    assert value_of(value, "") == value_of(same, "")


@pytest.mark.parametrize("values", [("上海", None), (None, "上海")])
def test_the_same_words_under_one_key_do_not_contradict_if_one_has_no_value(
    values: tuple[str | None, ...],
) -> None:
    """A model sets no value, but a rule does."""
    sayings = [claim("住在上海", 3 * n, f"{n}", value=value, dedupe_key="city") for n, value in enumerate(values)]
    [row] = decided(sayings).rows
    assert (row.status, [source.said_at for source in row.sources]) == ("valid", [day(0), day(3)])


def test_two_claims_of_one_turn_are_two_memories() -> None:
    both = source("one turn", 0)
    memories = [
        claim(words, 0, dedupe_key=key, sources=(both,)) for words, key in (("I am Ann", "name"), ("I am 30", "age"))
    ]
    assert len(decided(memories).valid) == 2


def test_the_same_turn_found_by_rule_and_model_is_recorded_once() -> None:
    both = source("one turn", 0)
    by_rule, by_model = gpa("3.80", 0, sources=(both,)), claim("Ann's GPA", 0, value="3.8", sources=(both,))
    after = decided([by_rule]).say(by_model.model_copy(update={"dedupe_key": "gpa"}))
    assert len(after.events) == 1


def test_the_event_records_the_model_that_extracted_the_memory() -> None:
    derivation = Derivation(provider="p", model="m", prompt_hash="h", from_seq=1, through_seq=2)
    [recorded] = decide(city("北京", 0), [], derivation=derivation)
    assert isinstance(recorded, MemoryRecorded) and recorded.derivation == derivation


def edit(after: DecidedMemories, content: str, on: float) -> DecidedMemories:
    return after.apply(edited(after.rows[-1], EDIT, content, day(on)))


def test_an_edit_replaces_the_memory_and_earlier_statements_do_not_undo_it() -> None:
    after = edit(decided([gpa("3.8", 0)]), "GPA is 3.9", 5)
    assert (after.valid, after.rows[0].closed_reason, after.row(EDIT).origin) == (["GPA is 3.9"], "edited", "user")
    after.say(gpa("3.5", 3))
    assert [after.on(n) for n in (1, 4, 6)] == [["GPA is 3.8"], ["GPA is 3.5"], ["GPA is 3.9"]]


@pytest.mark.parametrize("strategy", ["KEEP_HIGHEST", "KEEP_OLDEST", "MERGE"])
def test_no_strategy_undoes_an_edit(strategy: str) -> None:
    after = edit(decided([gpa("3.8", 0, strategy=strategy)]), "GPA is 3.1", 5)
    after.say(gpa("3.0", 4, strategy=strategy))
    assert (after.valid, after.on(6)) == (["GPA is 3.1"], ["GPA is 3.1"])


def test_an_edit_keeps_only_the_entities_that_it_names() -> None:
    after = edit(decided([gpa("3.8", 0, entities=("Sesame", "Oxford"))]), "GPA at oxford is 3.9", 5)
    assert after.row(EDIT).entities == ("Oxford",)


def test_only_a_valid_memory_can_be_edited() -> None:
    after = decided([gpa("3.8", 0), gpa("3.5", 3)])
    with pytest.raises(MemoryNotInUse):
        edited(after.rows[0], EDIT, "GPA is 4", day(5))


def test_a_revert_makes_an_earlier_version_valid_and_ends_later_ones() -> None:
    after = decided([gpa("3.8", 0), gpa("3.5", 3), gpa("3.2", 6)])
    after.apply(reverted(after.rows[0].id, after.rows))
    assert (after.valid, after.on(4), after.on(9)) == (["GPA is 3.8"],) * 3
    assert [row.closed_reason for row in after.rows] == ["reverted"] * 3
    assert after.say(gpa("3.9", 9)).valid == ["GPA is 3.9"]
    assert after.on(8) == ["GPA is 3.8"]


def test_a_reverted_memory_does_not_lose_to_the_version_that_the_user_reverted() -> None:
    after = decided([gpa("3.5", 0, strategy="KEEP_HIGHEST"), gpa("3.9", 3, strategy="KEEP_HIGHEST")])
    after.apply(reverted(after.rows[0].id, after.rows))
    assert after.say(gpa("3.2", 5, strategy="KEEP_HIGHEST")).valid == ["GPA is 3.5"]


def test_a_revert_leaves_other_valid_memories_unchanged() -> None:
    after = decided(
        [claim(words, n, dedupe_key="likes", strategy="KEEP_BOTH") for n, words in enumerate(("tea", "cake"))]
    )
    edit(after, "pie", 5)
    after.apply(reverted(after.rows[1].id, after.rows))
    assert sorted(after.valid) == ["cake", "tea"]


def test_a_memory_that_lost_can_be_reverted_to() -> None:
    after = decided([gpa("3.9", 0, strategy="KEEP_HIGHEST"), gpa("3.5", 3, strategy="KEEP_HIGHEST")])
    after.apply(reverted(after.rows[1].id, after.rows))
    assert [after.on(n) for n in (1, 4)] == [["GPA is 3.9"], ["GPA is 3.5"]]
    assert after.say(gpa("3.7", 2, strategy="KEEP_HIGHEST")).on(4) == ["GPA is 3.5"]


def test_valid_forgotten_and_unknown_memories_cannot_be_reverted_to() -> None:
    after = decided([gpa("3.8", 0)])
    for id_ in (after.rows[0].id, EDIT):
        with pytest.raises(NothingToRevert):
            reverted(id_, after.rows)
    after.put(replace(after.rows[0], status="forgotten"))
    after.apply(MemoryForgotten(memory_id=after.rows[0].id))
    with pytest.raises(NothingToRevert):
        reverted(after.rows[0].id, after.rows)
