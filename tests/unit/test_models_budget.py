"""The hourly budget: no hour ever holds more than it allows, and nothing waits forever."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.models.budget import WINDOW, Budget, Spent, allowed_at

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BUDGETS = st.builds(Budget, st.integers(1, 5), st.integers(1, 1000))
WORK = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 1500)), max_size=30)


def spend(budget: Budget, work: list[tuple[int, int]]) -> list[Spent]:
    """Ask for each piece of work (seconds after the one before, tokens) and book what is allowed."""
    now, booked = NOON, []
    for gap, tokens in work:
        now += timedelta(seconds=gap)
        if allowed_at(budget, booked, now, tokens) == now:
            booked.append(Spent(now, tokens))
    return booked


@given(BUDGETS, WORK)
def test_no_sliding_hour_holds_more_than_the_budget_but_for_one_oversized_call(budget, work):
    booked = spend(budget, work)
    for end in booked:
        hour = [one.tokens for one in booked if end.at - WINDOW < one.at <= end.at]
        assert len(hour) <= budget.calls_per_hour
        assert sum(hour) <= budget.tokens_per_hour or len(hour) == 1


@given(BUDGETS, WORK, st.integers(0, 2000))
def test_the_wait_is_exact_allowed_then_and_not_a_moment_before(budget, work, estimate):
    booked = spend(budget, work)
    now = booked[-1].at if booked else NOON
    at = allowed_at(budget, booked, now, estimate)
    if at > now:
        assert at <= now + WINDOW
        assert allowed_at(budget, booked, at, estimate) == at
        assert allowed_at(budget, booked, at - timedelta(microseconds=1), estimate) == at


@given(BUDGETS, st.integers(0, 10**9))
def test_an_idle_hour_allows_any_one_call(budget, estimate):
    assert allowed_at(budget, [], NOON, estimate) == NOON


def test_booked_work_is_forgotten_after_an_hour():
    assert allowed_at(Budget(1, 10), [Spent(NOON, 10)], NOON + WINDOW, 10) == NOON + WINDOW
