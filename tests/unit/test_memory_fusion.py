"""Tests the ranking of memories: the parts of similarity, their weights, and importance. Pure."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.recall.memory_search import DEFAULT, fused
from turnlog.projectors.models.memories.memory_candidates import Candidate

NOW = datetime(2026, 11, 22, tzinfo=UTC)
PLAIN = Candidate(
    id=UUID(int=1),
    importance=0.8,
    importance_at=NOW,
    access_count=0,
    last_accessed_at=None,
    confidence=0.9,
    confirmed_at=NOW,
    expires_at=None,
    matched=2.0,
    sought=4.0,
    length=5,
    cosine=None,
    usual=None,
    spread=None,
    named=0,
    dated=False,
)


def order(*candidates: Candidate, **asked: bool) -> list[int]:
    return [scored.candidate.id.int for scored in fused(candidates, NOW, **asked)]


def other(**changes: object) -> Candidate:
    return replace(PLAIN, id=UUID(int=2), **changes)  # type: ignore[arg-type]


def test_a_memory_with_more_of_the_questions_words_comes_first() -> None:
    assert order(PLAIN, other(matched=3.0)) == [2, 1]


def test_memories_with_nothing_in_common_with_the_question_are_left_out() -> None:
    assert order(PLAIN, other(matched=0.0)) == [1]
    assert order(other(matched=0.0, sought=0.0)) == []


def test_a_cosine_is_scored_by_its_distance_above_the_usual_one() -> None:
    near = replace(PLAIN, matched=0.0, cosine=0.90, usual=0.80, spread=0.025)
    usual = other(matched=0.0, cosine=0.80, usual=0.80, spread=0.025)
    [only] = fused([near, usual], NOW)
    assert only.parts["vector"].value == pytest.approx(1.0)


def test_memories_without_a_vector_are_ranked_by_their_other_parts() -> None:
    assert "vector" not in fused([PLAIN], NOW)[0].parts


def test_an_entity_of_all_memories_does_not_count() -> None:
    about_all = [replace(PLAIN, id=UUID(int=n), named=1) for n in range(1, 40)]
    assert fused(about_all, NOW, by_name=True)[0].parts["entity"].value < 0.05
    one_of_many = [replace(candidate, named=int(candidate.id.int == 7)) for candidate in about_all]
    best = fused(one_of_many, NOW, by_name=True)[0]
    assert (best.candidate.id.int, best.parts["entity"].value) == (7, 1.0)


def test_a_named_time_counts_only_if_the_question_names_one() -> None:
    assert order(PLAIN, other(dated=True), by_time=True) == [2, 1]
    assert "time" not in fused([other(dated=True)], NOW)[0].parts


def test_of_equal_memories_the_more_important_comes_first_then_the_later_one() -> None:
    assert order(PLAIN, other(importance=0.9)) == [2, 1]
    older = timedelta(days=1)
    assert order(other(confirmed_at=NOW - older), PLAIN) == [1, 2]


def test_importance_decays_at_reading_time() -> None:
    assert order(other(importance_at=NOW - timedelta(days=40)), PLAIN) == [1, 2]


shares = st.floats(0, 1)


@given(shares, shares, st.floats(-1, 1), st.booleans(), st.integers(0, 50), st.integers(0, 4_000))
def test_all_scores_stay_within_zero_and_one(
    importance: float, matched: float, cosine: float, dated: bool, accesses: int, days: int
) -> None:
    candidate = replace(
        PLAIN,
        importance=importance,
        importance_at=NOW - timedelta(days=days),
        matched=matched * PLAIN.sought,
        cosine=cosine,
        usual=0.1,
        spread=0.1,
        dated=dated,
        access_count=accesses,
    )
    for scored in fused([candidate], NOW, DEFAULT, by_time=True):
        assert 0 <= scored.score <= 1
        assert 0 <= scored.similarity <= 1
        assert all(0 <= part.value <= 1 for part in scored.parts.values())
