"""No hour ever exceeds the hourly limit, and no request waits forever."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.models.spending_limit import WINDOW, SpendingLimit, Spent, allowed_at

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LIMITS = st.builds(SpendingLimit, st.integers(1, 5), st.integers(1, 1000))
WORK = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 1500)), max_size=30)


def spend(limit: SpendingLimit, work: list[tuple[int, int]]) -> list[Spent]:
    """Requests each piece of work (seconds after the previous one, tokens) and books what is allowed."""
    now, booked = NOON, []
    for gap, tokens in work:
        now += timedelta(seconds=gap)
        if allowed_at(limit, booked, now, tokens) == now:
            booked.append(Spent(now, tokens))
    return booked


@given(LIMITS, WORK)
def test_no_sliding_hour_holds_more_than_the_budget_but_for_one_oversized_call(limit, work):
    booked = spend(limit, work)
    for end in booked:
        hour = [booking.tokens for booking in booked if end.at - WINDOW < booking.at <= end.at]
        assert len(hour) <= limit.calls_per_hour
        assert sum(hour) <= limit.tokens_per_hour or len(hour) == 1


@given(LIMITS, WORK, st.integers(0, 2000))
def test_the_wait_ends_exactly_when_the_call_is_allowed(limit, work, estimate):
    booked = spend(limit, work)
    now = booked[-1].at if booked else NOON
    at = allowed_at(limit, booked, now, estimate)
    if at > now:
        assert at <= now + WINDOW
        assert allowed_at(limit, booked, at, estimate) == at
        assert allowed_at(limit, booked, at - timedelta(microseconds=1), estimate) == at


@given(LIMITS, st.integers(0, 10**9))
def test_an_idle_hour_allows_any_one_call(limit, estimate):
    assert allowed_at(limit, [], NOON, estimate) == NOON


def test_booked_work_is_forgotten_after_an_hour():
    assert allowed_at(SpendingLimit(1, 10), [Spent(NOON, 10)], NOON + WINDOW, 10) == NOON + WINDOW
