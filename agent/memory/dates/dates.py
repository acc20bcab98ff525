"""Finds English and Chinese dates in a question, as intervals relative to the time of the question. Pure.

The library dateparser was tried: it finds points in time, not intervals, does not read "last March", "last summer",
"三年前", "去年三月" or "上周五", takes the word in "march on" for a month, and its first call takes a third of a
second.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, tzinfo

from turnlog.agent.memory.dates import chinese as dates_zh
from turnlog.agent.memory.dates import english as dates_en
from turnlog.agent.memory.dates.spans import DaySpan
from turnlog.events.contracts.base import END_OF_TIME, FIRST_TIME

MAX_CHARS = 2_000
_BEFORE = re.compile(r"\b(?P<how>since|after|before|until|till)\s+(?:the\s+)?(?:early\s+|late\s+)?$", re.IGNORECASE)
_BEHIND = re.compile(
    r"\s*(?:(?P<since>以来|开始|起(?!床|来))|(?P<after>之后|以后)|(?P<before>之前|以前|前(?![面天后年途])))"
)


@dataclass(frozen=True, slots=True)
class Dated:
    """A date expression in a text and its interval [from_time, to_time). start: its position in the text."""

    text: str
    start: int
    from_time: datetime
    to_time: datetime


def dates_in(text: str, now: datetime, zone: tzinfo = UTC) -> list[Dated]:
    """Returns the dates in the first MAX_CHARS characters of a question asked at `now` (aware) in time zone `zone`, in
    the order of the text.

    An expression that may be past or future ("in May", "on Friday") means the latest past one. Returns [] if `now` is
    not a time that events can have.
    """
    if not FIRST_TIME <= now < END_OF_TIME:
        return []
    text = text[:MAX_CHARS]
    today = now.astimezone(zone).date()
    dates = [_dated(text, match, span, now, zone) for match, span in _matches(text, today)]
    return sorted(dates, key=lambda dated: dated.start)


def _matches(text: str, today: date) -> Iterator[tuple[re.Match[str], DaySpan]]:
    """Yields each match once, from the first rule that reads it."""
    left = text
    for rule in (*dates_en.RULES, *dates_zh.RULES):
        for match in rule.pattern.finditer(left):
            try:
                span = rule.read(match, today)
            except (ValueError, OverflowError):  # a year or a day beyond the calendar
                span = None
            if span is not None:
                first, end = match.span("date")
                left = left[:first] + "\0" * (end - first) + left[end:]
                yield match, span


def _dated(text: str, match: re.Match[str], span: DaySpan, now: datetime, zone: tzinfo) -> Dated:
    if just := _just_before(text[: match.start("date")], span):
        return Dated(match["date"], match.start("date"), _midnight(just.first, zone), _midnight(just.end, zone))
    first, end = _midnight(span.first, zone), _midnight(span.end, zone)
    before, behind = _BEFORE.search(text[: match.start("date")]), _BEHIND.match(text[match.end("date") :])
    how = before["how"].lower() if before else behind.lastgroup if behind else None
    match how:
        case "since":
            first, end = first, max(now, end)
        case "after":
            first, end = end, max(now, end)
        case "before" | "until" | "till":
            first, end = min(FIRST_TIME, first), first
    return Dated(match["date"], match.start("date"), first, end)


def _just_before(text: str, span: DaySpan) -> DaySpan | None:
    match = dates_en.JUST_BEFORE.search(text)
    try:
        return dates_en.just_before(match, span.first) if match else None
    except (ValueError, OverflowError):
        return None


def _midnight(on: date, zone: tzinfo) -> datetime:
    return datetime.combine(on, time(), zone)
