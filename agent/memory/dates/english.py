"""English date expressions as rules: a pattern, and the span that it means relative to a day. Pure.

Names of months and seasons have other meanings too (may, march, fall, June), so they count only next to words that
indicate a time.
"""

import re
from collections.abc import Callable
from datetime import date
from typing import NamedTuple

from turnlog.agent.memory.dates import spans
from turnlog.agent.memory.dates.spans import DaySpan
from turnlog.projectors.models.terms import MONTHS

Read = Callable[[re.Match[str], date], DaySpan | None]


class Rule(NamedTuple):
    """A rule for dates. pattern: its group `date` is the expression; the rest is context. read: returns None for a day
    that does not exist."""

    pattern: re.Pattern[str]
    read: Read


_NUMBERS = {
    **dict.fromkeys(("a", "an", "one"), 1),
    **dict.fromkeys(("two", "couple", "a couple", "a couple of", "couple of"), 2),
    "three": 3,
    **dict.fromkeys(("few", "a few", "several"), spans.FEW),
    **{"four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12},
}
_STEPS = {**dict.fromkeys(("last", "past", "previous"), -1), "this": 0, **dict.fromkeys(("next", "coming"), 1)}
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SEASONS = {"spring": 0, "summer": 1, "autumn": 2, "fall": 2, "winter": 3}
_MONTHS = {name.lower()[:3]: number for number, name in enumerate(MONTHS, 1)}

_NUMBER = r"(?P<count>\d{1,3}|" + "|".join(sorted(_NUMBERS, key=len, reverse=True)) + ")"
_UNIT = r"(?P<unit>day|week|month|year)s?"
_STEP = rf"(?P<step>{'|'.join(_STEPS)})"
_MONTH = (
    r"(?P<month>january|february|march|april|may|june|july|august|september|october|november|december"
    r"|(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)(?:\.|\b))"
)
_CAPITAL_MONTH = r"(?P<month>(?-i:" + "|".join(MONTHS) + r")|(?-i:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.?)"
_SEASON = rf"(?P<season>{'|'.join(_SEASONS)})"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_DAY = r"(?P<day>[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?"
_COUNTED = r"(?:words|characters|tokens|calories|steps|people|dollars|euros|pounds|met(?:er|re)s|miles|km)"
_ABOUT = r"\b(?:in|during|since|until|till|before|after|between|through|early|late|mid)"


def _rule(pattern: str, read: Read) -> Rule:
    return Rule(re.compile(pattern, re.IGNORECASE), read)


def _count(match: re.Match[str]) -> int:
    said = " ".join(match["count"].lower().split())
    return int(said) if said.isdigit() else _NUMBERS[said]


def _month_of(match: re.Match[str]) -> int:
    return _MONTHS[match["month"].lower()[:3]]


def _step_of(match: re.Match[str]) -> int:
    return _STEPS[match["step"].lower()]


def _date(match: re.Match[str], today: date) -> DaySpan | None:
    month, number = _month_of(match), int(match["day"])
    if match["year"]:
        return spans.on_day(int(match["year"]), month, number)
    return spans.last_on_day(today, month, number)


def _numeric(match: re.Match[str], _: date) -> DaySpan | None:
    """Returns the day of a numeric date: month first (American order), or day first if that is not a date."""
    first, second, year = int(match["a"]), int(match["b"]), int(match["year"])
    return spans.on_day(year, first, second) or spans.on_day(year, second, first)


def _near(match: re.Match[str], today: date) -> DaySpan:
    said = " ".join(match["date"].lower().split())
    back = {"the day before yesterday": 2, "yesterday": 1, "last night": 1, "tomorrow": -1}
    return spans.day(today - back.get(said, 0) * spans.DAY)


def _on_the(match: re.Match[str], today: date) -> DaySpan | None:
    """Returns the latest day with this number up to today, in this month or the two before it; None if there is
    none."""
    months = (spans.add_months(today.replace(day=1), -back) for back in range(3))
    days = (spans.on_day(first.year, first.month, int(match["day"])) for first in months)
    return next((day for day in days if day is not None and day.first <= today), None)


# "The week before 3 August" is one week, not all time before it.
JUST_BEFORE = re.compile(
    rf"\b(?:{_NUMBER}\s+{_UNIT}|the\s+(?:(?P<whole>day|week|month|year)|(?P<name>{'|'.join(WEEKDAYS)})))\s+before\s+$",
    re.IGNORECASE,
)


def just_before(match: re.Match[str], first: date) -> DaySpan:
    """Returns the span of an expression that JUST_BEFORE matched, such as "the week before" or "3 days before". first:
    the day that follows the expression."""
    if match["name"]:
        return spans.weekday(first, WEEKDAYS.index(match["name"].lower()), -1)
    if match["whole"]:
        return DaySpan(spans.lately(first - spans.DAY, 1, match["whole"].lower()).first, first)
    return spans.ago(first, _count(match), match["unit"].lower())


# In this order: text that a rule has matched is not read by later rules.
RULES = (
    _rule(
        r"\b(?P<date>(?P<year>(?:19|20)\d\d)-(?P<number>0[1-9]|1[0-2])-(?P<day>\d\d))\b",
        lambda m, _: spans.on_day(int(m["year"]), int(m["number"]), int(m["day"])),
    ),
    _rule(
        r"\b(?P<date>(?P<year>(?:19|20)\d\d)/(?P<number>0?[1-9]|1[0-2])/(?P<day>\d\d?))\b",
        lambda m, _: spans.on_day(int(m["year"]), int(m["number"]), int(m["day"])),
    ),
    _rule(r"\b(?P<date>(?P<a>\d\d?)/(?P<b>\d\d?)/(?P<year>(?:19|20)\d\d))\b", _numeric),
    _rule(
        r"(?<![\d-])(?P<date>(?P<year>(?:19|20)\d\d)-(?P<number>0[1-9]|1[0-2]))(?![\d-])",
        lambda m, _: spans.month(int(m["year"]), int(m["number"])),
    ),
    _rule(rf"\b(?P<date>{_DAY}\s+(?:of\s+)?{_MONTH}(?:\s*,?\s*{_YEAR})?)\b", _date),
    _rule(rf"\b(?P<date>{_MONTH}\s+{_DAY}\s*,?\s*{_YEAR})\b", _date),
    _rule(rf"\b(?P<date>{_CAPITAL_MONTH}\s+{_DAY}(?!\d|[:.,]\d|\s*(?:am|pm|%))(?P<year>))\b", _date),
    _rule(rf"\b(?P<date>{_MONTH}\s*,?\s*(?:of\s+)?{_YEAR})\b", lambda m, _: spans.month(int(m["year"]), _month_of(m))),
    _rule(
        rf"\b(?P<date>{_SEASON}\s*,?\s*(?:of\s+)?{_YEAR})\b",
        lambda m, _: spans.season(int(m["year"]), _SEASONS[m["season"].lower()]),
    ),
    _rule(r"\b(?P<date>the\s+day\s+before\s+yesterday|yesterday|today|tonight|last\s+night|tomorrow)\b", _near),
    _rule(
        rf"\b(?:in|over|during|within|for)?\s*the\s+(?:last|past)\s+(?P<date>{_NUMBER}\s+{_UNIT})\b",
        lambda m, today: spans.lately(today, _count(m), m["unit"].lower()),
    ),
    _rule(
        r"\b(?P<date>the\s+past\s+(?P<unit>day|week|month|year))\b",
        lambda m, today: spans.lately(today, 1, m["unit"].lower()),
    ),
    _rule(
        rf"\b(?P<date>{_NUMBER}\s+{_UNIT}\s+(?:ago|back|earlier))\b",
        lambda m, today: spans.ago(today, _count(m), m["unit"].lower()),
    ),
    _rule(
        rf"\b(?P<date>{_MONTH}\s+(?:of\s+)?(?P<step>last|this|next)\s+year)\b",
        lambda m, today: spans.month(today.year + _step_of(m), _month_of(m)),
    ),
    _rule(
        rf"\b(?P<date>{_SEASON}\s+(?:of\s+)?(?P<step>last|this|next)\s+year)\b",
        lambda m, today: spans.season(today.year + _step_of(m), _SEASONS[m["season"].lower()]),
    ),
    _rule(
        rf"\b(?!(?:this|next|coming)\s+(?-i:may)\s+\w)(?P<date>{_STEP}\s+{_MONTH})(?![\w'’])",
        lambda m, today: spans.stepped_month(today, _month_of(m), _step_of(m)),
    ),
    _rule(
        rf"\b(?P<date>{_STEP}\s+{_SEASON})\b",
        lambda m, today: spans.stepped_season(today, _SEASONS[m["season"].lower()], _step_of(m)),
    ),
    _rule(
        rf"\b(?P<date>{_STEP}\s+(?P<name>{'|'.join(WEEKDAYS)}))\b",
        lambda m, today: spans.weekday(today, WEEKDAYS.index(m["name"].lower()), _step_of(m)),
    ),
    _rule(
        rf"\b(?P<date>{_STEP}\s+(?P<unit>weekend|week|month|year))\b",
        lambda m, today: spans.next_to(today, m["unit"].lower(), _step_of(m)),
    ),
    _rule(
        rf"\b(?:on|since|until|before|after)\s+(?P<date>{'|'.join(f'(?:{name})' for name in WEEKDAYS)})\b",
        lambda m, today: spans.last_weekday(today, WEEKDAYS.index(m["date"].lower())),
    ),
    _rule(
        rf"{_ABOUT}[\s-]+(?P<date>{_MONTH})(?![\w'’])(?!\s+\d)",
        lambda m, today: spans.last_month_named(today, _month_of(m)),
    ),
    _rule(
        rf"{_ABOUT}\s+the\s+(?P<date>{_SEASON})\b(?!\s+(?:camp|school|house|job|internship|course|sale|collection)s?\b)",
        lambda m, today: spans.last_season(today, _SEASONS[m["season"].lower()]),
    ),
    _rule(r"\bon\s+(?P<date>the\s+(?P<day>[12]\d|3[01]|[1-9])(?:st|nd|rd|th))(?=\s*(?:[?.!,;]|$))", _on_the),
    _rule(rf"{_ABOUT}\s+(?P<date>{_YEAR})(?![\w-]|[.,:]\d|\s+{_COUNTED}\b)", lambda m, _: spans.year(int(m["year"]))),
)
