"""Dates in a question, English and Chinese, as intervals of time relative to when it is asked (M7). Pure.

dateparser was measured for this: it finds points of time, not intervals, reads neither "last March", "last summer" nor
"三年前", "去年三月", "上周五", takes the word in "march on" for a month, and needs a third of a second the first time.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, tzinfo
from typing import NamedTuple

from turnlog.agent.memories import dates_en, dates_zh
from turnlog.agent.memories.spans import Span

MAX_CHARS = 2_000
_BEFORE = re.compile(r"\b(?P<how>since|after|before|until|till)\s+(?:the\s+)?(?:early\s+|late\s+)?$", re.IGNORECASE)
_BEHIND = re.compile(
    r"\s*(?:(?P<since>以来|开始|起(?!床|来))|(?P<after>之后|以后)|(?P<before>之前|以前|前(?![面天后年途])))"
)


class Dated(NamedTuple):
    """An expression of time in a text, and the interval [from_time, to_time) it means. start: its place in the text."""

    text: str
    start: int
    from_time: datetime
    to_time: datetime


def dates_in(text: str, now: datetime, zone: tzinfo = UTC) -> list[Dated]:
    """Those of a question asked at `now` (aware) by somebody in `zone`, in the order of the text.

    Of what could be in the past or in the future ("in May", "on Friday") the latest past one is meant.
    """
    text = text[:MAX_CHARS]
    today = now.astimezone(zone).date()
    found = [_dated(text, match, span, now, zone) for match, span in _matches(text, today)]
    return sorted(found, key=lambda one: one.start)


def _matches(text: str, today: date) -> Iterator[tuple[re.Match[str], Span]]:
    """Each place of the text once, for the first rule that reads it."""
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


def _dated(text: str, match: re.Match[str], span: Span, now: datetime, zone: tzinfo) -> Dated:
    first, end = _midnight(span.first, zone), _midnight(span.end, zone)
    before, behind = _BEFORE.search(text[: match.start("date")]), _BEHIND.match(text[match.end("date") :])
    how = before["how"].lower() if before else behind.lastgroup if behind else None
    always = datetime.min.replace(tzinfo=UTC)
    match how:
        case "since":
            first, end = first, max(now, end)
        case "after":
            first, end = end, max(now, end)
        case "before" | "until" | "till":
            first, end = always, first
    return Dated(match["date"], match.start("date"), first, end)


def _midnight(on: date, zone: tzinfo) -> datetime:
    return datetime.combine(on, time(), zone)
