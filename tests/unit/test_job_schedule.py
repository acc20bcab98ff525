"""Jobs are due by the clock of a zone, once after a downtime, and correctly on days when clocks change."""

from datetime import UTC, datetime, timedelta

import pytest

from turnlog.agent.operations.jobs.schedule import InvalidSchedule, Schedule

NIGHTLY = Schedule.of("0 3 * * *", "UTC")
DUE = datetime(2026, 11, 22, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "newest", "following"),
    [(-0.5, DUE - timedelta(days=1), DUE), (0, DUE, DUE + timedelta(days=1)), (0.5, DUE, DUE + timedelta(days=1))],
    ids=["just before", "on the second", "just after"],
)
def test_the_due_times_around_a_moment(seconds: float, newest: datetime, following: datetime) -> None:
    moment = DUE + timedelta(seconds=seconds)
    assert NIGHTLY.newest(moment) == newest
    assert NIGHTLY.after(moment) == following


def test_nothing_is_due_when_the_newest_due_time_was_run() -> None:
    assert NIGHTLY.owed(DUE, DUE + timedelta(hours=23)) is None


def test_after_days_without_a_worker_only_the_newest_due_time_is_due() -> None:
    assert NIGHTLY.owed(DUE - timedelta(days=9), DUE + timedelta(hours=6)) == DUE


def test_a_job_that_never_ran_is_due_at_once() -> None:
    assert NIGHTLY.owed(None, DUE + timedelta(hours=6)) == DUE


def test_three_in_the_morning_is_in_the_configured_timezone() -> None:
    assert Schedule.of("0 3 * * *", "Asia/Shanghai").after(DUE) == datetime(2026, 11, 22, 19, tzinfo=UTC)


def test_a_time_that_the_clocks_skip_is_due_after_the_gap() -> None:
    berlin = Schedule.of("30 2 * * *", "Europe/Berlin")
    assert berlin.after(datetime(2026, 3, 28, 12, tzinfo=UTC)) == datetime(2026, 3, 29, 1, tzinfo=UTC)


def test_a_time_that_the_clocks_show_twice_is_due_once() -> None:
    berlin = Schedule.of("30 2 * * *", "Europe/Berlin")
    first = berlin.after(datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert first == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert berlin.after(first) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    assert berlin.owed(first, datetime(2026, 10, 25, 2, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("expression", "zone", "named"),
    [
        ("at three", "UTC", "at three"),
        ("0 3 * * *", "Mars/Olympus", "TURNLOG_TIMEZONE"),
        ("99 3 * * *", "UTC", "99"),
        ("0 0 30 2 *", "UTC", "0 0 30 2"),
        ("0 0 31 4,6 *", "UTC", "day-of-month"),
    ],
    ids=["no cron expression", "no time zone", "no minute", "no such day", "no such day in two months"],
)
def test_a_schedule_that_cannot_be_understood_is_named(expression: str, zone: str, named: str) -> None:
    with pytest.raises(InvalidSchedule, match=named):
        Schedule.of(expression, zone)
