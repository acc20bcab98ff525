"""Normalisers for extraction rules: each converts a matched value to a normal form. Pure.

A normaliser gets the value, the time when it was said, and the rule's parameters; it returns the normalised value or
raises ValueError with the reason.
"""

import functools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import phonenumbers

from turnlog.agent.memory.dates.dates import Dated, dates_in
from turnlog.events.contracts.base import is_undated

Normaliser = Callable[..., str]
_ENDS = " \t\r\n.,;:!?~。，；：！？、…～—–-*_·"
_PAIRS = {"(": ")", "（": "）", "“": "”", '"': '"', "'": "'", "‘": "’", "「": "」", "『": "』"}
# After these words, a question is part of the value: "understand which is better".
_BEFORE_A_QUESTION = (
    "understand",
    "see",
    "know",
    "decide",
    "learn",
    "tell",
    "about",
    "on",
    "of",
    "in",
    "for",
    "to",
    "with",
)
_NOT_ASKED = "".join(f"(?<!{word} )" for word in _BEFORE_A_QUESTION)
_TRAILING = re.compile(
    r"\s*(?:[;；。!！?？\n]|\s[-–—]{1,2}\s|——"
    r"|[,，]?\s*\b(?:but|because|since|although|though|however|so that|so i|so we|so,|(?<=, )so|(?<=, )(?:which|who)"
    rf"|{_NOT_ASKED}(?:which|who)"
    r"|and i|and we|and you|and it|and my"
    r"|(?<=, )(?:please|pls|thanks|thank you|can|could|would|any|let's|suggest|recommend|give|help)|lol|lmao|haha+|tbh"
    r"|when i|where i|while i|if i|if you|especially|mainly|what about|how about|do you|have you|can you|could you)\b"
    r"|[,，]?\s*(?:但是?|不过|可是|因为|所以|而且|然后|你呢|您呢|你觉得|您觉得|对吗|是吗|特别是|尤其|虽然|希望|主要)).*",
    re.IGNORECASE | re.DOTALL,
)
_CLAUSE = re.compile(
    r"(?:[，；。]|\s-{1,2}\s|,?\s'cause\b"
    r"|,(?=\s*(?:i|we|it|they|you|he|she|my|your|there|this|that|these|those|what|how|do|have|such|once"
    r"|the \w+ (?:is|are|was|were)|\w+ing (?:with )?(?:them|it))\b)).*",
    re.DOTALL | re.IGNORECASE,
)
# A list of at least three items that are too short to be clauses: 唱歌跳舞，健身，旅游.
_CHINESE_LIST = re.compile(
    r"[^，。；]{1,8}(?:，(?!很|真|超|感觉|觉得|比如|像|尤其|特别|非常)[^，。；我你您他她的了是都也不在这那吗呢什最吧呀啊哦谢有想要会去来爱喜讨]{1,5}(?=[，。；]|$)){2,}"
)
_FIRST_CLAUSE = re.compile(r"[,，；;。].*", re.DOTALL)
_PAST = re.compile(r"\d{4}|\b(?:yesterday|last|ago|past|previous)\b|昨|前|上|去年", re.IGNORECASE)
_UNTIL = re.compile(r"\s?(?:[-–—~至到]|to |through )\s?(\d{1,2})(?:st|nd|rd|th|[日号])?(?![\d/:.年月]|\s?(?:am|pm|:))")
_DIGITS = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}


def strip(value: str, said_at: datetime) -> str:
    """Removes spaces, punctuation and one pair of brackets or quotes around the value."""
    value = re.sub(r"\s+", " ", value).strip(_ENDS)
    if value[:1] in _PAIRS and value.endswith(_PAIRS[value[0]]):
        value = value[1:-1].strip(_ENDS)
    return value


def trailing(value: str, said_at: datetime) -> str:
    """Removes a reason, contrast or question that follows the value."""
    return strip(_TRAILING.sub("", value), said_at)


def clause(value: str, said_at: datetime) -> str:
    """Returns the value up to the next clause; a list with commas is one clause."""
    if match := _CHINESE_LIST.match(value):
        return trailing(match.group().replace("，", "、"), said_at)
    return trailing(_CLAUSE.sub("", value), said_at)


def first_clause(value: str, said_at: datetime) -> str:
    """Returns the value up to the first comma, semicolon or Chinese full stop."""
    return trailing(_FIRST_CLAUSE.sub("", value), said_at)


def lower(value: str, said_at: datetime) -> str:
    return value.lower()


def title(value: str, said_at: datetime) -> str:
    """Capitalises each word of an all lower-case value."""
    return value.title() if value.islower() else value


def without(value: str, said_at: datetime, *, pattern: str) -> str:
    """Removes matches of a regular expression."""
    return strip(re.sub(pattern, "", value, flags=re.IGNORECASE), said_at)


def mapped(value: str, said_at: datetime, *, to: dict[str, str]) -> str:
    """Replaces the value with a synonym ("中文" → "Chinese"); unchanged if there is none."""
    return to.get(value.lower(), value)


def number(value: str, said_at: datetime, *, decimals: int = 0) -> str:
    """Returns a number with `decimals` decimals; thousands separators are removed, Chinese numerals below 10,000 are
    read."""
    text = value.strip().replace(",", "").replace("，", "")
    try:
        amount = float(text)
    except ValueError:
        amount = float(chinese_number(text))
    return f"{amount:.{decimals}f}"


def chinese_number(text: str) -> int:
    """Reads a numeral: 十七 → 17; the short form 一千四百八 is read as 1408, not 1480. Raises ValueError."""
    total = digit = 0
    for char in text:
        if char in _DIGITS:
            digit = _DIGITS[char]
        elif char in "十百千":
            total += (digit or 1) * {"十": 10, "百": 100, "千": 1000}[char]
            digit = 0
        else:
            raise ValueError(f"{text[:20]!r} is no number")
    if not text:
        raise ValueError("no number")
    return total + digit


def _of_a_known_time(normaliser: Normaliser) -> Normaliser:
    """Makes a normaliser raise ValueError for a relative date ("next month") if the time of the statement is
    unknown."""

    @functools.wraps(normaliser)
    def checked(value: str, said_at: datetime, **options: Any) -> str:
        normalised = normaliser(value, said_at, **options)
        if is_undated(said_at) and normalised != normaliser(value, said_at + timedelta(days=400), **options):
            raise ValueError("nobody knows when it was said")
        return normalised

    return checked


@_of_a_known_time
def date(value: str, said_at: datetime, *, future: bool = False) -> str:
    """Returns the date in ISO 8601: 2027-03-18, 2027-03 for a month, or "2027-03-15 to 2027-03-21". Relative dates
    count from `said_at`. future: a day or month that has passed becomes that of the next year, unless the value names a
    year or means the past."""
    return _date(value, said_at, future)


def _date(value: str, said_at: datetime, future: bool = False) -> str:
    value = re.sub(r"(?<=[\d年月])\s+(?=[\d年月日号])", "", value)
    dates = dates_in(value, said_at, said_at.tzinfo or UTC)
    if not dates:
        raise ValueError(f"{value[:40]!r} is no date")
    return _iso(dates[0], said_at, future)


@_of_a_known_time
def birthday(value: str, said_at: datetime) -> str:
    """Returns 05-08, or 2001-05-08 if the value contains the year."""
    iso = _date(value, said_at)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", iso):
        raise ValueError(f"{value[:40]!r} is no day")
    return iso if re.search(r"\d{4}|[〇零一二三四五六七八九]{4}", value) else iso[5:]


@_of_a_known_time
def dated(value: str, said_at: datetime, *, past_days: int = 0) -> str:
    """Adds the absolute date of a relative one: "go to Spain next month (2023-06)", "July 16-18 (2024-07-16 to 18)".

    A day without a year means the next such day; a day that passed up to `past_days` days ago means that day.
    """
    dates = dates_in(value, said_at, said_at.tzinfo or UTC)
    if not dates:
        return value
    end = dates[0].start + len(dates[0].text)
    meant = _iso(dates[0], said_at, future=dates[0].to_time <= said_at - timedelta(days=past_days))
    if (until := _UNTIL.match(value, end)) and re.fullmatch(r"\d{4}-\d\d-\d\d", meant):
        end, meant = until.end(), f"{meant} to {int(until[1]):02}"
    return f"{value[:end]} ({meant}){value[end:]}" if value.isascii() else f"{value[:end]}（{meant}）{value[end:]}"


def email(value: str, said_at: datetime) -> str:
    return value.strip(_ENDS + "<>()（）").lower()


def phone(value: str, said_at: datetime, *, region: str = "CN", others: Sequence[str] = ("US", "GB")) -> str:
    """Returns the number in E.164 if it has a country code or is a mobile number of the region. The country of another
    number is unknown; it is returned as said if it is valid in the region or in one of the other countries. Raises
    ValueError."""
    for country in (region, *others):
        try:
            parsed = phonenumbers.parse(value, country)
        except phonenumbers.NumberParseException as error:
            raise ValueError(f"no telephone number: {error}") from None
        if phonenumbers.is_valid_number(parsed):
            is_mobile = country == region and phonenumbers.number_type(parsed) == phonenumbers.PhoneNumberType.MOBILE
            is_known = is_mobile or value.strip().startswith("+")
            return (
                phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164) if is_known else value.strip()
            )
    raise ValueError("no valid telephone number")


def _iso(when: Dated, said_at: datetime, future: bool) -> str:
    first = when.from_time
    days = (when.to_time - first).days
    if future and when.to_time <= said_at and not _PAST.search(when.text):
        first = first.replace(year=first.year + 1) if days <= 31 else first
    if days <= 1:
        return f"{first:%Y-%m-%d}"
    if first.day == 1 and days in (28, 29, 30, 31):
        return f"{first:%Y-%m}"
    return f"{first:%Y-%m-%d} to {first + timedelta(days=days - 1):%Y-%m-%d}"


NORMALISERS: dict[str, Normaliser] = {
    f.__name__: f
    for f in (
        *(strip, trailing, clause, first_clause, lower, title, without, mapped),
        *(number, date, birthday, dated, email, phone),
    )
}
