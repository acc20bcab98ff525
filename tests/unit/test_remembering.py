"""Times as people give them to `turnlog memories --as-of`."""

from datetime import UTC, datetime

import pytest

from turnlog.consumers.remembering import InvalidTime, time_of

NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ("2026-03-31T18:00", "2026-03-31T18:00:00+00:00"),
        ("2026-03-31 18:00+08:00", "2026-03-31T18:00:00+08:00"),
        ("2026-03-31", "2026-03-31T23:59:59.999999+00:00"),
        ("last March", "2026-03-31T23:59:59.999999+00:00"),
        ("去年三月", "2025-03-31T23:59:59.999999+00:00"),
    ],
)
def test_a_time_is_itself_and_a_span_its_last_moment(given: str, at: str) -> None:
    assert time_of(given, NOW) == datetime.fromisoformat(at)


@pytest.mark.parametrize("given", ["", "some day", "9999-12-31", "2026-13-01", "from May to June"])
def test_what_is_no_one_time_is_refused(given: str) -> None:
    with pytest.raises(InvalidTime):
        time_of(given, NOW)
