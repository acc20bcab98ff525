"""For every order of arrival the valid memories and intervals are the same, without losses or contradictions."""

from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

from helpers.dated_claims import DecidedMemories, claim, day, decided
from helpers.nightly import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnlog.agent.memory.deciding.revisions import edited, reverted
from turnlog.events.contracts import Memory, Strategy
from turnlog.projectors.models.memories.lookup import StoredMemory

VALUES = ("3.80", "3.8", "4", "1,500", "-2", "晚上跑步", "喝茶", "tea", "no")
ORDERLESS: tuple[Strategy, ...] = ("KEEP_LATEST", "KEEP_HIGHEST", "KEEP_OLDEST", "MERGE")

values = st.sampled_from(VALUES)
histories = st.lists(st.tuples(values, st.integers(0, 6)), min_size=1, max_size=9)
strategies = st.sampled_from(ORDERLESS)


def sayings(history: list[tuple[str, int]], strategy: Strategy, **fields: Any) -> list[Memory]:
    """Returns memories in which the same value has the same words, so that rows can be compared by their words."""
    return [
        claim(f"说：{value}", on, f"saying {n}", value=value, dedupe_key="k", strategy=strategy, **fields)
        for n, (value, on) in enumerate(history)
    ]


def outcome(rows: list[StoredMemory]) -> set[tuple[Any, ...]]:
    """Returns each memory's interval and replacement. Memories that were never valid are not part of the outcome."""
    words = {row.id: canonical(row) for row in rows}
    return {
        (canonical(row), row.valid_from, row.valid_to, words[row.replaced_by] if row.replaced_by else None)
        for row in rows
        if row.valid_to is None or row.valid_to > row.valid_from
    }


def canonical(row: StoredMemory) -> str:
    """Returns a canonical value, because 3.80 and 3.8 are equal and the first to arrive determines the words."""
    return row.content.replace("3.80", "3.8")


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), histories, strategies)
def test_the_order_of_arrival_does_not_change_validity(
    data: st.DataObject, history: list[tuple[str, int]], strategy: Strategy
) -> None:
    said = sayings(history, strategy)
    arrived = data.draw(st.permutations(said))
    in_order = sorted(said, key=lambda memory: memory.valid_from)
    assert outcome(decided(arrived).rows) == outcome(decided(in_order).rows)


@settings(max_examples=examples(200), deadline=None)
@given(histories, strategies)
def test_one_memory_of_a_key_is_valid_at_any_time(history: list[tuple[str, int]], strategy: Strategy) -> None:
    rows = decided(sayings(history, strategy)).rows
    assert sum(row.status == "valid" for row in rows) == 1
    held = sorted(
        (row.valid_from, row.valid_to) for row in rows if row.valid_to is None or row.valid_to > row.valid_from
    )
    assert all(end == begin for (_, end), (begin, _) in pairwise(held)), "neither overlap nor gap"
    assert held[0][0] == min(memory.valid_from for memory in sayings(history, strategy))


@settings(max_examples=examples(200), deadline=None)
@given(histories, st.sampled_from((*ORDERLESS, "KEEP_BOTH", "ASK_USER")))
def test_nothing_that_was_said_is_lost_from_history(history: list[tuple[str, int]], strategy: Strategy) -> None:
    said = sayings(history, strategy)
    after = decided(said)
    kept = defaultdict[Any, set[str]](set)
    for row in after.rows:
        for source in row.sources:
            kept[source.event_id].add(source.quote)
    assert all(memory.content in kept[memory.sources[0].event_id] for memory in said)
    ids = {row.id for row in after.rows}
    assert all(row.replaced_by in ids for row in after.rows if row.replaced_by)


@settings(max_examples=examples(200), deadline=None)
@given(histories, st.sampled_from((*ORDERLESS, "KEEP_BOTH", "ASK_USER")))
def test_repeating_everything_from_the_same_sources_changes_nothing(
    history: list[tuple[str, int]], strategy: Strategy
) -> None:
    said = sayings(history, strategy)
    after = decided(said)
    assert len(decided([*said, *said]).events) == len(after.events)


@settings(max_examples=examples(200), deadline=None)
@given(histories, strategies)
def test_importance_and_confidence_stay_within_zero_and_one(history: list[tuple[str, int]], strategy: Strategy) -> None:
    rows = decided(sayings(history, strategy, importance=1.0, confidence=0.0)).rows
    assert all(0 <= row.importance <= 1 and 0 <= row.confidence <= 1 for row in rows)


@settings(max_examples=examples(200), deadline=None)
@given(histories)
def test_the_latest_is_valid_and_history_shows_the_latest_statement_at_each_time(
    history: list[tuple[str, int]],
) -> None:
    said = sayings(history, "KEEP_LATEST")
    after = decided(said)
    for on in range(7):
        before = [memory for memory in said if memory.valid_from <= day(on)]
        held = [row for row in after.rows if holds(row, day(on))]
        if not before:
            assert held == []
            continue
        last = max(memory.valid_from for memory in before)
        assert len(held) == 1
        assert canonical(held[0]) in {m.content.replace("3.80", "3.8") for m in before if m.valid_from == last}


def holds(row: StoredMemory, at: datetime) -> bool:
    return row.valid_from <= at and (row.valid_to is None or at < row.valid_to)


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), st.lists(values, min_size=1, max_size=5, unique=True))
def test_merging_is_the_same_in_any_order_and_joins_in_order_of_saying(data: st.DataObject, said: list[str]) -> None:
    memories = [claim(value, on, dedupe_key="k", strategy="MERGE") for on, value in enumerate(said) if value != "3.80"]
    after: DecidedMemories = decided(data.draw(st.permutations(memories)))
    [valid] = after.valid or [""]
    assert valid.replace("；", "; ") == "; ".join(memory.content for memory in memories)


steps = st.tuples(st.sampled_from(["say", "say", "edit", "revert"]), values, st.integers(0, 9), st.integers(0, 5))


def taken(*words: str) -> list[tuple[str, str, int, int]]:
    """Returns steps from texts like "say VALUE DAY" and "revert WHICH"."""
    parts = [step.split() for step in words]
    return [
        ("say", part[1], int(part[2]), 0) if part[0] == "say" else ("revert", "", 0, int(part[1])) for part in parts
    ]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(steps, min_size=1, max_size=10), strategies)
@example(taken("say 3.80 0", "say 4 0", "revert 1", "say 3.80 1", "revert 3", "say 3.80 0"), "MERGE")
@example(taken("say 3.80 0", "say 4 1", "revert 0", "revert 1", "revert 1", "say 3.80 0"), "MERGE")
@example(taken("say 3.80 0", "say 4 1", "revert 1", "say 3.80 0", "revert 1", "say 3.80 0"), "MERGE")
def test_after_any_actions_one_memory_of_a_key_is_valid_and_intervals_never_overlap(
    done: list[tuple[str, str, int, int]], strategy: Strategy
) -> None:
    after = DecidedMemories()
    for n, (what, value, on, which) in enumerate(done):
        step(after, n, what, which, claim(value, on, f"step {n}", value=value, dedupe_key="k", strategy=strategy))
        assert len(after.valid) == 1
    intervals = [(row.valid_from, row.valid_to or day(9_999)) for row in after.rows if row.valid_to != row.valid_from]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(intervals)))


def step(after: DecidedMemories, n: int, what: str, which: int, memory: Memory) -> None:
    valid = [row for row in after.rows if row.status == "valid"]
    closed = [row for row in after.rows if row.status == "closed"]
    if what == "edit" and valid:
        after.apply(edited(valid[0], UUID(int=n), f"edit {n}", day(10 + n)))
        assert after.valid == [f"edit {n}"]
    elif what == "revert" and closed:
        row = closed[which % len(closed)]
        after.apply(reverted(row.id, after.rows))
        assert after.valid == [row.content]
    else:
        after.say(memory)
