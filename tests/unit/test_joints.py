"""Which old memories a model is to make one."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import combinations
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest
from memory_cases import day

from turnlog.agent.memories.compaction import Compactable
from turnlog.agent.memories.joints import FAINT_AT_ONCE, Joint, Scope, faint_ones, merges, summaries
from turnlog.agent.memories.near import Near

SCOPE = Scope(before=day(20), similarity=0.85, below=0.3)
MODEL = "unit-vectors"  # its cosine is the similarity


def told(content: str, **fields: Any) -> Compactable:
    usual: dict[str, Any] = {
        **{
            "id": uuid5(NAMESPACE_OID, content),
            "kind": "FACT",
            "content": content,
            "dedupe_key": None,
            "importance": 0.5,
        },
        **{"valid_from": day(0), "seq": 1, "expires_at": None, "origin": "llm", "entities": (), "touched_at": day(1)},
        **{"has_evidence": True},
    }
    return Compactable(**{**usual, **fields})


def faint(content: str, **fields: Any) -> Compactable:
    return told(content, **{"importance": 0.25, **fields})


def every_pair(memories: Sequence[Compactable], cosine: float) -> list[Near]:
    return [Near(first, second, cosine) for first, second in combinations(range(len(memories)), 2)]


def merged(*memories: Compactable, cosine: float = 0.88, apart: Sequence[frozenset[UUID]] = ()) -> list[set[str]]:
    return said(merges(memories, every_pair(memories, cosine), MODEL, SCOPE, len, apart))


def summarised(*memories: Compactable, cosine: float = 0.7, apart: Sequence[frozenset[UUID]] = ()) -> list[set[str]]:
    return said(summaries(memories, every_pair(memories, cosine), MODEL, SCOPE, len, apart))


def said(joints: Sequence[Joint]) -> list[set[str]]:
    return [{one.content for one in joint.members} for joint in joints]


TEA, FOND = told("likes green tea a lot"), told("is really fond of tea that is green")
RIDE, LAKE, BOAT = faint("rides a bike to work"), faint("swims in the lake"), faint("owns an old boat")


@pytest.mark.parametrize(
    ("cosine", "expected"),
    [(0.84, []), (0.85, [{TEA.content, FOND.content}]), (0.92, [{TEA.content, FOND.content}]), (0.93, [])],
)
def test_what_is_nearly_alike_is_merged_and_nothing_more_or_less_alike(cosine: float, expected: list[set[str]]) -> None:
    assert merged(TEA, FOND, cosine=cosine) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"origin": "explicit"},
        {"origin": "user"},
        {"origin": "compaction"},
        {"dedupe_key": "taste:tea"},
        {"expires_at": day(99)},
        {"touched_at": day(20) + timedelta(seconds=1)},
        {"kind": "PREFERENCE"},
        {"has_evidence": False},
    ],
)
def test_what_may_change_by_itself_was_made_or_is_young_is_left_alone(fields: dict[str, Any]) -> None:
    assert merged(TEA, told(FOND.content, **fields)) == []
    assert summarised(RIDE, LAKE, faint(BOAT.content, **fields)) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("lives in Berlin", "lives in Rome"),
        ("住在北京", "住在上海"),
        ("has 2 cats at home", "owns 3 cats since spring"),
        ("eats meat now and then", "does not eat any meat"),
        ("经常吃肉", "从来不吃牛肉"),
        ("works with Mia at the bank", "the bank where Leo works too"),
        ("prefers tea over coffee", "coffee over tea is preferred"),
        ("likes green tea a lot", "很喜欢喝绿茶"),
    ],
)
def test_what_may_contradict_or_is_in_another_language_is_not_merged(first: str, second: str) -> None:
    assert merged(told(first), told(second)) == []


def test_one_that_says_more_than_the_other_is_merged() -> None:
    for first, second in (("goes to see Mia", "goes to see Mia and Leo on Sunday"), ("跑步锻炼身体", "每周跑步2次")):
        assert len(merged(told(first), told(second))) == 1


def test_a_group_has_five_members_at_most_and_none_twice() -> None:
    many = [told(f"{word} likes tea {word}") for word in ("a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg")]
    sizes = sorted(len(group) for group in merged(*many))
    assert sizes == [2, 5]


def test_what_was_taken_apart_is_not_joined_again() -> None:
    assert merged(TEA, FOND, apart=[frozenset((TEA.id, FOND.id))]) == []
    assert summarised(RIDE, LAKE, BOAT, apart=[frozenset((RIDE.id, LAKE.id, BOAT.id))]) == []
    walk, pair = faint("walks by the sea"), [frozenset((LAKE.id, BOAT.id))]
    [group] = summarised(RIDE, LAKE, BOAT, walk, apart=pair)
    assert len(group & {LAKE.content, BOAT.content}) == 1


def test_three_faint_ones_about_one_thing_are_summarised() -> None:
    assert summarised(RIDE, LAKE, BOAT) == [{RIDE.content, LAKE.content, BOAT.content}]
    assert summarised(RIDE, LAKE) == []
    assert summarised(RIDE, LAKE, BOAT, cosine=0.49) == []
    assert summarised(RIDE, LAKE, told(BOAT.content, importance=0.31)) == []


def test_an_entity_brings_together_what_is_not_alike() -> None:
    about = [faint(one.content, entities=("Mia",)) for one in (RIDE, LAKE, BOAT)]
    assert len(summarised(*about, cosine=0.1)) == 1


def test_what_may_not_be_merged_may_be_said_side_by_side_in_a_summary() -> None:
    assert len(summarised(faint("likes tea"), faint("likes coffee"), faint("likes cocoa"))) == 1
    assert len(summarised(faint("喜欢喝茶"), faint("喜欢爬山"), faint("喜欢下棋"))) == 1


def test_a_group_is_bounded_by_its_tokens() -> None:
    long = [faint(f"{letter * 200} {letter.upper() * 200}") for letter in "abcdefgh"]
    assert [len(group) for group in summarised(*long)] == [3, 3]
    long = [faint(f"{letter * 300} {letter.upper() * 300}") for letter in "abcdefgh"]
    assert summarised(*long) == []


def test_the_faintest_come_first_and_not_all_at_once() -> None:
    many = [faint(f"fact {n}", importance=0.29 - n / 20_000) for n in range(FAINT_AT_ONCE + 5)]
    chosen = faint_ones(many, SCOPE)
    assert chosen == list(range(5, FAINT_AT_ONCE + 5))
    assert faint_ones(many[:3], SCOPE, {many[1].id}) == [0, 2]
