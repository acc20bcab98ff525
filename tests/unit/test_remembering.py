"""Tests times as people write them for `turnlog memories --as-of`."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from turnlog.consumers.cli.remembering import InvalidTime, time_of

NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-03-31T18:00", "2026-03-31T18:00:00+00:00"),
        ("2026-03-31 18:00+08:00", "2026-03-31T18:00:00+08:00"),
        ("2026-03-31", "2026-03-31T23:59:59.999999+00:00"),
        ("last March", "2026-03-31T23:59:59.999999+00:00"),
        ("去年三月", "2025-03-31T23:59:59.999999+00:00"),
    ],
)
def test_a_time_means_itself_and_a_span_its_last_moment(text: str, at: str) -> None:
    assert time_of(text, NOW) == datetime.fromisoformat(at)


@pytest.mark.parametrize("text", ["yesterday", "昨天"])
def test_words_for_a_day_use_the_timezone_and_an_iso_date_uses_utc(text: str) -> None:
    early = datetime(2026, 6, 14, 23, tzinfo=UTC)  # this is 07:00 of the 15th in Shanghai
    shanghai = ZoneInfo("Asia/Shanghai")
    assert time_of(text, early, shanghai) == datetime.fromisoformat("2026-06-14T15:59:59.999999+00:00")
    assert time_of(text, early) == datetime.fromisoformat("2026-06-13T23:59:59.999999+00:00")
    assert time_of("2026-03-31", early, shanghai) == datetime.fromisoformat("2026-03-31T23:59:59.999999+00:00")


@pytest.mark.parametrize("text", ["", "some day", "9999-12-31", "2026-13-01", "from May to June"])
def test_a_text_that_is_not_one_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidTime):
        time_of(text, NOW)
