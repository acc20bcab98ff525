"""Each strategy is applied to a model's verdicts on two memories, and a model may not decide everything."""

from typing import Any

import pytest
from helpers.dated_claims import DecidedMemories, claim, day

from turnlog.agent.memory.deciding.memory_state import MemoryState
from turnlog.agent.memory.deciding.policy import Policy
from turnlog.agent.memory.deciding.writing import Place
from turnlog.agent.memory.upkeep.contradictions import comparisons, resolve
from turnlog.events.contracts import Comparison, Derivation, MemoryCompared, MemoryConflictRaised

DERIVED = Derivation(provider="p", model="m", prompt_hash="h", from_seq=1, through_seq=2)
OLD, NEW = "Scored 58 points", "Has 52 points"


def after(
    verdict: str, strategy: str | None, old: Any = None, new: Any = None
) -> tuple[dict[str, str | None], list[Any]]:
    """Returns the status of each memory afterwards, and the events. old, new: further fields of the two memories."""
    first, second = claim(OLD, 1, **(old or {})), claim(NEW, 5, **(new or {}))
    rows = DecidedMemories().say(first, second).rows
    known = MemoryState(Place("default", "ann"), rows, day(9))
    said = Comparison(memory_id=first.id, verdict=verdict, strategy=strategy)
    events = resolve(second.id, known, [said], Policy(), DERIVED)
    return {row.content: row.closed_reason or row.status for row in known.rows.values()}, events


@pytest.mark.parametrize(
    ("strategy", "outcome"),
    [
        ("KEEP_LATEST", {OLD: "superseded", NEW: "valid"}),
        ("KEEP_OLDEST", {OLD: "valid", NEW: "rejected"}),
        ("KEEP_HIGHEST", {OLD: "valid", NEW: "rejected"}),
        ("KEEP_BOTH", {OLD: "valid", NEW: "valid"}),
        ("ASK_USER", {OLD: "valid", NEW: "pending"}),
        ("MERGE", {OLD: "merged", NEW: "merged", f"{OLD}; {NEW}": "valid"}),
    ],
)
def test_each_strategy_settles_a_contradiction_in_its_way(strategy: str, outcome: dict[str, str]) -> None:
    states, events = after("contradicts", strategy)
    assert states == outcome
    assert isinstance(events[0], MemoryCompared) and events[0].derivation == DERIVED


def test_the_question_of_ask_user_names_both_claims() -> None:
    _, events = after("contradicts", "ASK_USER")
    assert isinstance(events[1], MemoryConflictRaised)
    assert OLD in events[1].question and NEW in events[1].question


@pytest.mark.parametrize(
    ("old", "new", "proposed", "outcome"),
    [
        ({"dedupe_key": "k", "strategy": "KEEP_OLDEST"}, {}, "KEEP_LATEST", {OLD: "valid", NEW: "rejected"}),
        ({}, {"origin": "user"}, "KEEP_OLDEST", {OLD: "superseded", NEW: "valid"}),
        ({"value": "58 of 60"}, {}, "KEEP_HIGHEST", {OLD: "superseded", NEW: "valid"}),
        ({"origin": "user"}, {}, "MERGE", {OLD: "valid", NEW: "valid"}),
    ],
)
def test_a_rule_and_a_person_come_before_the_model_and_a_highest_needs_one_number(
    old: Any, new: Any, proposed: str, outcome: dict[str, str]
) -> None:
    assert after("contradicts", proposed, old, new)[0] == outcome


def test_memories_with_different_numbers_names_or_negation_stay_valid() -> None:
    assert after("same", None)[0] == {OLD: "valid", NEW: "valid"}
    assert after("unrelated", None)[0] == {OLD: "valid", NEW: "valid"}


def test_only_the_numbered_memories_of_an_answer_count_and_each_once() -> None:
    rows = DecidedMemories().say(claim("a b", 1), claim("c d", 2)).rows
    verdicts = [
        {"memory": 2, "verdict": "contradicts", "strategy": None},
        {"memory": 2, "verdict": "same", "strategy": None},
        {"memory": 9, "verdict": "contradicts", "strategy": "KEEP_LATEST"},
    ]
    assert comparisons(verdicts, rows) == (
        Comparison(memory_id=rows[1].id, verdict="contradicts", strategy="KEEP_LATEST"),
    )
