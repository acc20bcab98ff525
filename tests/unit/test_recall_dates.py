"""The days that a query means, in the words chunks are dated with."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from turnlog.agent.dates.dates import date_words

NOW = datetime(2026, 11, 22, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "days"),
    [
        ("Where did I go yesterday?", "21 November 2026"),
        ("昨天我去了哪里？", "21 November 2026"),
        ("What did I plant last March?", "March 2026"),
        ("去年三月我在做什么？", "March 2025"),
        ("last summer", "June 2026 July 2026 August 2026"),
        ("what I did last year", "2025"),
        ("since 2020", ""),
        ("nothing of a date", ""),
    ],
)
def test_dates_are_told_by_day_month_or_year(query: str, days: str) -> None:
    assert date_words(query, NOW) == days


def test_a_day_is_one_where_the_user_lives() -> None:
    assert date_words("today", NOW, ZoneInfo("Asia/Shanghai")) == "23 November 2026"


EDGES = [datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC) for year in (1, 1970, 2026, 9998, 9999)]
STEPS = (
    "next month · before May · until tomorrow · next winter · 下个月 · 明年 · 三月之前 · in 9000 days · past 9000 years"
)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Kiritimati"])
@pytest.mark.parametrize("now", EDGES, ids=lambda now: str(now.year))
def test_dates_at_the_edge_of_the_calendar_are_read_or_left_out(now: datetime, zone: str) -> None:
    for query in STEPS.split(" · "):
        assert isinstance(date_words(query, now, ZoneInfo(zone)), str)
