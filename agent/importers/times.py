"""Times as files write them, and the times of turns that have none."""

from datetime import UTC, datetime
from typing import Any

from turnlog.agent.importers.imported import ONE_SECOND

_MILLISECONDS_FROM = 1e11  # as seconds this is the year 5138


def parse_time(value: Any) -> datetime:
    """ISO 8601 text (no offset means UTC), or seconds or milliseconds since 1970.

    Raises ValueError when it is neither.
    """
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if abs(value) >= _MILLISECONDS_FROM else value
            return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise ValueError(f"time {str(value)[:40]!r} cannot be read; write it as 2026-05-08T13:56:00Z")


def parse_session_time(value: Any) -> datetime:
    """LoCoMo's "1:56 pm on 8 May, 2023", taken as UTC. Raises ValueError."""
    try:
        return datetime.strptime(value, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
    except (ValueError, TypeError) as error:
        raise ValueError(f"session date {str(value)[:40]!r} is not like '1:56 pm on 8 May, 2023'") from error


class Clock:
    """Gives a turn without a time one second more than the turn before it in its thread."""

    def __init__(self, base_time: datetime) -> None:
        self._base = base_time.astimezone(UTC)
        self._last: dict[str, datetime] = {}
        self._dated: set[str] = set()

    def is_dated(self, thread: str) -> bool:
        """Whether the file told a time of the thread so far; else its times count from the base time."""
        return thread in self._dated

    def time(self, thread: str, value: Any) -> datetime:
        """The turn's time; `value` is what the file says, or None. Raises ValueError."""
        if value is not None:
            time = parse_time(value)
            self._dated.add(thread)
        else:
            last = self._last.get(thread)
            time = self._base if last is None else last + ONE_SECOND
        self._last[thread] = time
        return time
