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
