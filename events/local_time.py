"""Computes local times, because the day on which a person said something follows their clock, not UTC.

The log and read models contain the UTC offset of a turn's time (utc_offset). A time in UTC does not tell the speaker's
zone; it is shown in the person's preferred zone, or else in TURNLOG_TIMEZONE.
"""

from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, timezone, tzinfo

# Imported turns without a time get times from here on, one second apart.
UNDATED_FROM = datetime(2000, 1, 1, tzinfo=UTC)
UNDATED_UNTIL = UNDATED_FROM + timedelta(days=30)

caller_zone: ContextVar[tzinfo] = ContextVar("caller_zone", default=UTC)
"""The zone that the current request names in a header or in a claim of its token; otherwise UTC. For `local`,
UTC is no zone of a person, even if the request names it."""


def zone_named(name: str) -> tzinfo:
    """Returns the IANA time zone with this name. Raises ValueError."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ValueError(f"there is no time zone {name[:80]!r}; give a name such as UTC or Asia/Shanghai") from None


def zone_or(name: str | None, default: tzinfo) -> tzinfo:
    """Returns the named zone; the default if the name is missing or unknown on this machine."""
    try:
        return zone_named(name) if name else default
    except ValueError:
        return default


def now_there() -> datetime:
    """Returns the current time, in the zone of the current request if it names one."""
    return datetime.now(caller_zone.get())


def offset_of(at: datetime) -> int:
    """Returns the UTC offset of an aware time in seconds; positive if its clock is ahead of UTC."""
    return int((at.utcoffset() or timedelta(0)).total_seconds())


def with_offset(at: datetime, seconds: int) -> datetime:
    """Returns the same moment on a clock with this offset from UTC."""
    return at.astimezone(timezone(timedelta(seconds=seconds))) if seconds else at


def local(at: datetime, zone: tzinfo) -> datetime:
    """Returns the time in its own zone, or in `zone` if it is in plain UTC. A time in a named zone keeps that zone even
    when its offset is 0, as London's is in winter."""
    return at if at.utcoffset() or hasattr(at.tzinfo, "key") else at.astimezone(zone)


def is_undated(at: datetime) -> bool:
    """Returns whether the time is unknown, that is, was assigned by an import because the file contained none."""
    return UNDATED_FROM <= at < UNDATED_UNTIL


def day_text(at: datetime) -> str:
    """Returns the day as 2026-05-08, or "undated" if it is unknown."""
    return "undated" if is_undated(at) else f"{at:%Y-%m-%d}"
