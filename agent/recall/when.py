"""The days that a query's dates mean, in the words that chunks are dated with: yesterday is 21 November 2026. Pure."""

from datetime import UTC, datetime, timedelta, tzinfo

from turnlog.agent.memories.dates import dates_in
from turnlog.projectors.chunking import day
from turnlog.projectors.terms import MONTHS

MOST_MONTHS = 3


def when(query: str, now: datetime, zone: tzinfo = UTC) -> str:
    """now: when it is asked, by somebody in `zone`. "" where no date of it is known to the year."""
    return " ".join(filter(None, (_words(one.from_time, one.to_time, zone) for one in dates_in(query, now, zone))))


def _words(first: datetime, end: datetime, zone: tzinfo) -> str:
    """One day, or the months that hold the interval, or its year; nothing of a longer one."""
    first, last = first.astimezone(zone), (end - timedelta(microseconds=1)).astimezone(zone)
    if first.date() == last.date():
        return day(datetime(first.year, first.month, first.day, tzinfo=UTC))
    months = range(12 * first.year + first.month - 1, 12 * last.year + last.month)
    if len(months) <= MOST_MONTHS:
        return " ".join(f"{MONTHS[month % 12]} {month // 12}" for month in months)
    return str(first.year) if first.year == last.year else ""
