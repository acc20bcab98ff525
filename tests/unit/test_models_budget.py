"""The hourly budget: no hour ever holds more than it allows, and nothing waits forever."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.models.budget import WINDOW, Allowed, Budget, BudgetState, WaitUntil, may_spend

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BUDGETS = st.builds(Budget, st.integers(1, 5), st.integers(1, 1000))
WORK = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 1500)), max_size=30)


def spend(budget: Budget, work: list[tuple[int, int]]) -> tuple[BudgetState, list[tuple[datetime, int]]]:
    """Ask for each piece of work (seconds after the one before, tokens) and book what is allowed."""
    state, now, booked = BudgetState(), NOON, []
    for gap, tokens in work:
        now += timedelta(seconds=gap)
        if may_spend(budget, state, now, tokens) == Allowed():
            state = state.after(now, tokens)
            booked.append((now, tokens))
    return state, booked


@given(BUDGETS, WORK)
def test_no_sliding_hour_holds_more_than_the_budget_but_for_one_oversized_call(budget, work):
    _, booked = spend(budget, work)
    for end, _ in booked:
        hour = [tokens for at, tokens in booked if end - WINDOW < at <= end]
        assert len(hour) <= budget.calls_per_hour
        assert sum(hour) <= budget.tokens_per_hour or len(hour) == 1


@given(BUDGETS, WORK, st.integers(0, 2000))
def test_the_wait_is_exact_allowed_then_and_not_a_moment_before(budget, work, estimate):
    state, booked = spend(budget, work)
    now = booked[-1][0] if booked else NOON
    answer = may_spend(budget, state, now, estimate)
    if isinstance(answer, WaitUntil):
        assert now < answer.at <= now + WINDOW
        assert may_spend(budget, state, answer.at, estimate) == Allowed()
        assert may_spend(budget, state, answer.at - timedelta(microseconds=1), estimate) == answer


@given(BUDGETS, st.integers(0, 10**9))
def test_an_idle_hour_allows_any_one_call(budget, estimate):
    assert may_spend(budget, BudgetState(), NOON, estimate) == Allowed()


def test_booked_work_is_forgotten_after_an_hour():
    state = BudgetState().after(NOON, 10).after(NOON + WINDOW, 20)
    assert [entry.tokens for entry in state.spent] == [20]
