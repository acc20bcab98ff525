"""Tests the score of a memory and its archiving, with the design's numbers and with properties for all numbers."""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from helpers.dated_claims import day
from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.memory.deciding.policy import (
    SEED,
    Policy,
    fate,
    first_importance,
    freshness,
    importance_at,
    importance_now,
    score,
    tier_of,
)
from turnlog.agent.settings import Settings
from turnlog.events.contracts import MemoryKind

START = day(0)


@dataclass(frozen=True)
class Row:
    importance: float = 0.8
    importance_at: datetime = START
    confidence: float = 0.9
    access_count: int = 0
    last_accessed_at: datetime | None = None
    confirmed_at: datetime = START
    expires_at: datetime | None = None


shares = st.floats(0, 1)
days = st.integers(0, 800)
policies = st.builds(
    Policy,
    enabled=st.booleans(),
    decay_rate=shares,
    archive_threshold=shares,
    archive_after_days=st.integers(1, 400),
    delete_after_days=st.integers(1, 800),
)
rows = st.builds(
    Row,
    importance=shares,
    importance_at=days.map(day),
    confidence=shares,
    access_count=st.integers(0, 10_000),
    last_accessed_at=st.none() | days.map(day),
    confirmed_at=days.map(day),
    expires_at=st.none() | days.map(day),
)


def test_the_default_settings_are_the_numbers_of_the_design() -> None:
    assert Policy.of(Settings(_env_file=None)) == SEED  # type: ignore[call-arg]


def test_a_score_is_the_weighted_sum_and_the_bonus_of_ten_accesses_at_most() -> None:
    scored = score(Row(access_count=3), day(10))
    assert scored.importance == pytest.approx(0.8 + 3 * 0.02 - 0.1)
    assert scored.freshness == pytest.approx(math.exp(-1))
    assert scored.access_bonus == pytest.approx(0.03)
    assert scored.total == pytest.approx(0.4 * scored.importance + 0.3 * scored.freshness + 0.3 * 0.9 + 0.03)
    assert scored.tier == "SHORT"
    assert score(Row(access_count=500), day(10)).access_bonus == 0.1


@pytest.mark.parametrize(
    ("total", "tier"),
    [
        (1, "WORKING"),
        (0.8, "WORKING"),
        (0.79, "SHORT"),
        (0.5, "SHORT"),
        (0.49, "LONG"),
        (0.2, "LONG"),
        (0.19, "ARCHIVE"),
    ],
)
def test_tiers_begin_at_their_totals(total: float, tier: str) -> None:
    assert tier_of(total) == tier


@pytest.mark.parametrize(("after", "left"), [(0, 0.8), (1, 0.79), (30, 0.5), (70, 0.1), (400, 0.1)])
def test_importance_falls_by_a_hundredth_a_day_down_to_a_tenth(after: int, left: float) -> None:
    assert importance_at(0.8, day(0), day(after)) == pytest.approx(left)


def test_an_importance_below_the_floor_does_not_change() -> None:
    assert importance_at(0.05, day(0), day(300)) == 0.05


@pytest.mark.parametrize(
    ("row", "after", "expected"),
    [
        (Row(), 59, "keep"),
        (Row(), 61, "archive"),
        (Row(), 366, "delete"),
        (Row(confirmed_at=day(100), importance_at=day(100)), 366, "archive"),
        (Row(last_accessed_at=day(100)), 366, "archive"),
        (Row(importance_at=day(900)), 930, "keep"),
        (Row(expires_at=day(5)), 5, "expire"),
        (Row(expires_at=day(5)), 4, "keep"),
    ],
)
def test_the_fate_of_a_memory_follows_from_importance_and_age(row: Row, after: int, expected: str) -> None:
    assert fate(row, day(after)) == expected


@pytest.mark.parametrize(
    ("row", "after", "expected"),
    [
        (Row(), 180, "keep"),
        (Row(), 181, "archive"),
        (Row(last_accessed_at=day(100)), 181, "keep"),
        (Row(importance_at=day(100)), 181, "keep"),
    ],
)
def test_without_decay_memories_are_archived_by_age(row: Row, after: int, expected: str) -> None:
    assert fate(row, day(after), Policy(decay_rate=0)) == expected


def test_with_the_policy_off_only_a_time_to_live_ends_a_memory() -> None:
    off = Policy(enabled=False)
    assert fate(Row(), day(5_000), off) == "keep"
    assert fate(Row(expires_at=day(9)), day(5_000), off) == "expire"
    assert importance_now(Row(), day(5_000), off) == 0.8


@given(shares, policies, st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_decay_at_read_time_is_the_daily_job_run_day_by_day(start: float, policy: Policy, runs: list[int]) -> None:
    """The result does not depend on the days or the number of runs."""
    left, since = start, 0
    for n in sorted(runs):
        left, since = importance_at(left, day(since), day(n), policy), n
    assert left == pytest.approx(importance_at(start, day(0), day(since), policy), abs=1e-9)


@pytest.mark.parametrize(("accesses", "expected"), [(0, 0.5), (1, 0.52), (15, 0.8), (60, 0.8)])
def test_an_access_is_worth_two_hundredths_and_three_tenths_in_all(accesses: int, expected: float) -> None:
    assert importance_now(Row(importance=0.5, access_count=accesses), day(0)) == pytest.approx(expected)


@given(rows, days.map(day), policies)
def test_all_scores_stay_within_zero_and_one(row: Row, now: datetime, policy: Policy) -> None:
    scored = score(row, now, policy)
    parts = (scored.total, scored.importance, scored.freshness, scored.confidence, scored.access_bonus)
    assert all(0 <= part <= 1 for part in parts)


@given(rows, days.map(day), days, policies)
def test_importance_never_grows_with_age(row: Row, now: datetime, later: int, policy: Policy) -> None:
    after = now + timedelta(days=later)
    assert score(row, after, policy).total <= score(row, now, policy).total + 1e-12
    assert importance_now(row, after, policy) >= min(policy.floor, row.importance) - 1e-12
    assert freshness(row.confirmed_at, now - timedelta(days=9_999), policy) == 1


@given(rows, days.map(day), policies)
def test_reading_a_memory_never_archives_it(row: Row, now: datetime, policy: Policy) -> None:
    order = ("keep", "archive", "delete")
    before = fate(row, now, policy)
    read = replace(row, access_count=row.access_count + 1, last_accessed_at=max(now, row.last_accessed_at or now))
    after = fate(read, now, policy)
    assert before == after == "expire" or order.index(after) <= order.index(before)


@pytest.mark.parametrize(
    ("kind", "content", "base", "expected"),
    [
        ("FACT", "I have two cats", None, 0.8),
        ("FACT", "我的GPA是3.8", None, 0.9),
        ("FACT", "My GPA is 3.8, ranked 4th", None, 0.95),
        ("FACT", "That is exactly what I saw on Saturday", None, 0.8),
        ("FACT", "我的托福 TOEFL 考了110，年级排名第三", 0.85, 1.0),
        ("PREFERENCE", "我想早申", None, 0.75),
        ("PREFERENCE", "My dream school is Yale, and I apply ED", None, 0.85),
        ("PREFERENCE", "I wanted red shoes", None, 0.6),
        ("DECISION", "我最终还是选择了北大", None, 1.0),
        ("SUMMARY", "Ann talked of cats", None, 0.5),
        ("FEEDBACK", "回答太长了", None, 0.7),
    ],
)
def test_the_first_importance_follows_from_kind_and_words(
    kind: MemoryKind, content: str, base: float | None, expected: float
) -> None:
    assert first_importance(kind, content, base) == pytest.approx(expected)
