"""Computes when a job is due, from a cron expression in a time zone. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from turnlog.events.errors import TurnlogError


class InvalidSchedule(TurnlogError):
    """A cron expression, or the name of a time zone, cannot be understood."""

    code = "invalid-schedule"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron expression with five fields, in the local time of a zone.

    When clocks change, a skipped time is due right after the gap, and a repeated time is due once (as in Debian's
    cron).
    """

    expression: str
    zone: ZoneInfo

    @classmethod
    def of(cls, expression: str, zone: str) -> "Schedule":
        """Returns the schedule of a cron expression in a time zone. Raises InvalidSchedule."""
        try:
            time_zone = ZoneInfo(zone)
        except (ValueError, OSError, LookupError):
            raise InvalidSchedule(
                f"there is no time zone {zone!r}; set TURNLOG_TIMEZONE to a name such as UTC or Asia/Shanghai"
            ) from None
        try:
            CronSim(expression, datetime.now(time_zone))
        except CronSimError as error:
            raise InvalidSchedule(
                f"{expression!r} is not a schedule ({error}); write minute, hour, day, month, weekday: '0 3 * * *'"
            ) from None
        return cls(expression, time_zone)

    def after(self, now: datetime) -> datetime:
        """Returns the next due time, in UTC. Raises InvalidSchedule if there is no next due time."""
        return self._first(CronSim(self.expression, now.astimezone(self.zone)))

    def newest(self, now: datetime) -> datetime:
        """Returns the last due time up to now, in UTC. Raises InvalidSchedule if there was none."""
        behind = now.replace(microsecond=0) + timedelta(seconds=1)  # in reverse, CronSim begins before the given time
        return self._first(CronSim(self.expression, behind.astimezone(self.zone), reverse=True))

    def owed(self, last: datetime | None, now: datetime) -> datetime | None:
        """Returns the newest due time if it was not run yet. After a pause this is only the newest due time, not each
        one that was missed."""
        newest = self.newest(now)
        return newest if last is None or last < newest else None

    def _first(self, times: Iterator[datetime]) -> datetime:
        try:
            return next(times).astimezone(UTC)
        except StopIteration:
            raise InvalidSchedule(f"{self.expression!r} is never due; it names a day that no month has") from None
