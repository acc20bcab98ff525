"""Tests which groups of old memories a model merges or summarises."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import combinations
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest
from helpers.dated_claims import day

from turnlog.agent.memory.upkeep.compaction import Compactable
from turnlog.agent.memory.upkeep.merge_groups import (
    MAX_SUMMARY_CANDIDATES,
    MergeCriteria,
    MergeGroup,
    near_duplicate_groups,
    summary_candidates,
    summary_groups,
)
from turnlog.agent.memory.upkeep.near_vectors import NearPair

CRITERIA = MergeCriteria(before=day(20), similarity=0.85, below=0.3)
MODEL = "unit-vectors"  # for this model the cosine is the similarity


def memory(content: str, **fields: Any) -> Compactable:
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


def minor(content: str, **fields: Any) -> Compactable:
    return memory(content, **{"importance": 0.25, **fields})


def every_pair(memories: Sequence[Compactable], cosine: float) -> list[NearPair]:
    return [NearPair(first, second, cosine) for first, second in combinations(range(len(memories)), 2)]


def merged(*memories: Compactable, cosine: float = 0.88, separated: Sequence[frozenset[UUID]] = ()) -> list[set[str]]:
    return contents(near_duplicate_groups(memories, every_pair(memories, cosine), MODEL, CRITERIA, len, separated))


def summarised(
    *memories: Compactable, cosine: float = 0.7, separated: Sequence[frozenset[UUID]] = ()
) -> list[set[str]]:
    return contents(summary_groups(memories, every_pair(memories, cosine), MODEL, CRITERIA, len, separated))


def contents(groups: Sequence[MergeGroup]) -> list[set[str]]:
    return [{member.content for member in group.members} for group in groups]


TEA, FOND = memory("likes green tea a lot"), memory("is really fond of tea that is green")
RIDE, LAKE, BOAT = (
    minor("rides a bike to work"),
    minor("swims in the lake"),
    minor("owns an old boat"),
)


@pytest.mark.parametrize(
    ("cosine", "expected"),
    [(0.84, []), (0.85, [{TEA.content, FOND.content}]), (0.92, [{TEA.content, FOND.content}]), (0.93, [])],
)
def test_near_duplicates_are_merged_and_nothing_more_or_less_similar(cosine: float, expected: list[set[str]]) -> None:
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
def test_handmade_keyed_expiring_merged_and_young_memories_are_in_no_group(
    fields: dict[str, Any],
) -> None:
    assert merged(TEA, memory(FOND.content, **fields)) == []
    assert summarised(RIDE, LAKE, minor(BOAT.content, **fields)) == []


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
def test_memories_that_may_contradict_or_differ_in_language_are_not_merged(first: str, second: str) -> None:
    assert merged(memory(first), memory(second)) == []


def test_a_memory_that_states_more_than_the_other_is_merged() -> None:
    for first, second in (("goes to see Mia", "goes to see Mia and Leo on Sunday"), ("跑步锻炼身体", "每周跑步2次")):
        assert len(merged(memory(first), memory(second))) == 1


def test_a_group_has_five_members_at_most_and_none_twice() -> None:
    many = [memory(f"{word} likes tea {word}") for word in ("a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg")]
    sizes = sorted(len(group) for group in merged(*many))
    assert sizes == [2, 5]


def test_separated_memories_are_not_merged_again() -> None:
    assert merged(TEA, FOND, separated=[frozenset((TEA.id, FOND.id))]) == []
    assert summarised(RIDE, LAKE, BOAT, separated=[frozenset((RIDE.id, LAKE.id, BOAT.id))]) == []
    walk, pair = minor("walks by the sea"), [frozenset((LAKE.id, BOAT.id))]
    [group] = summarised(RIDE, LAKE, BOAT, walk, separated=pair)
    assert len(group & {LAKE.content, BOAT.content}) == 1


def test_three_unimportant_memories_about_one_subject_are_summarised() -> None:
    assert summarised(RIDE, LAKE, BOAT) == [{RIDE.content, LAKE.content, BOAT.content}]
    assert summarised(RIDE, LAKE) == []
    assert summarised(RIDE, LAKE, BOAT, cosine=0.49) == []
    assert summarised(RIDE, LAKE, memory(BOAT.content, importance=0.31)) == []


def test_a_shared_entity_groups_memories_that_are_not_similar() -> None:
    about = [minor(member.content, entities=("Mia",)) for member in (RIDE, LAKE, BOAT)]
    assert len(summarised(*about, cosine=0.1)) == 1


def test_memories_that_may_not_be_merged_may_be_summarised_together() -> None:
    assert len(summarised(minor("likes tea"), minor("likes coffee"), minor("likes cocoa"))) == 1
    assert len(summarised(minor("喜欢喝茶"), minor("喜欢爬山"), minor("喜欢下棋"))) == 1


def test_a_group_is_bounded_by_its_tokens() -> None:
    long = [minor(f"{letter * 200} {letter.upper() * 200}") for letter in "abcdefgh"]
    assert [len(group) for group in summarised(*long)] == [3, 3]
    long = [minor(f"{letter * 300} {letter.upper() * 300}") for letter in "abcdefgh"]
    assert summarised(*long) == []


def test_the_least_important_come_first_and_not_all_at_once() -> None:
    many = [minor(f"fact {n}", importance=0.29 - n / 20_000) for n in range(MAX_SUMMARY_CANDIDATES + 5)]
    chosen = summary_candidates(many, CRITERIA)
    assert chosen == list(range(5, MAX_SUMMARY_CANDIDATES + 5))
    assert summary_candidates(many[:3], CRITERIA, {many[1].id}) == [0, 2]
