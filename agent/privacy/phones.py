"""Phone numbers in a text (M8): Chinese mobile numbers by their own format, the others by phonenumbers. Pure.

Digits without a country code or grouping count as a phone number only after a word such as "phone": order numbers
and timestamps look the same.
"""

import re

import phonenumbers
from phonenumbers import Leniency, PhoneNumberMatch, PhoneNumberMatcher

from turnlog.agent.privacy.identifiers import replaced

_MOBILE = re.compile(r"(?<![0-9A-Za-z*.])(?<![0-9]-)(1[3-9][0-9])([ -]?)[0-9]{4}([ -]?)([0-9]{4})(?![0-9*])(?!-[0-9])")
_CODED_MOBILE = re.compile(r"(?<![0-9A-Za-z*.])(\+?86[ -]?)(1[3-9][0-9])[ -]?[0-9]{4}[ -]?([0-9]{4})(?![0-9*])")
_LIKELY = re.compile(r"[0-9０-９](?:[^0-9０-９\n]{0,3}[0-9０-９]){6}")
_SAID = re.compile(
    r"(?:tel|phone|call|mobile|cell|fax|whatsapp|text me|reach me|电话|手机|联系|致电|拨打|号码|座机|传真|微信)"
    r"[^\n]{0,20}$",
    re.IGNORECASE,
)
MARKS = "****"


def masked(text: str, regions: tuple[str, ...]) -> str:
    if not _LIKELY.search(text):
        return text
    text = replaced(text, _CODED_MOBILE, lambda m: f"{m[1]}{m[2]}{MARKS}{m[3]}")
    text = replaced(text, _MOBILE, lambda m: f"{m[1]}{MARKS}{m[4]}")
    for region in regions:
        text = _by_region(text, region)
    return text


def _by_region(text: str, region: str) -> str:
    parts, at = [], 0
    for found in PhoneNumberMatcher(text, region, leniency=Leniency.VALID, max_tries=1_000):
        if _is_one(text, found):
            parts += [text[at : found.start], _mask(found)]
            at = found.end
    return "".join([*parts, text[at:]]) if at else text


def _is_one(text: str, found: PhoneNumberMatch) -> bool:
    raw = found.raw_string
    around = text[found.start - 1 : found.start] + text[found.end : found.end + 1]
    if any((c.isalnum() and c.isascii()) or c in "*_" for c in around):
        return False
    if raw.lstrip().startswith(("+", "＋")):
        return True
    if _SAID.search(text, max(0, found.start - 32), found.start):
        return True
    return any(c in raw for c in "-() .") and _is_grouped(found)


def _is_grouped(found: PhoneNumberMatch) -> bool:
    """Whether the area code is separated, as is usual in the number's country."""
    written = [part for part in re.split(r"[^0-9]+", found.raw_string) if part]
    national = phonenumbers.format_number(found.number, phonenumbers.PhoneNumberFormat.NATIONAL)
    usual = [part for part in re.split(r"[^0-9]+", national) if part]
    return len(written) > 1 and written[0] == usual[0] and "".join(written) == "".join(usual)


def _mask(found: PhoneNumberMatch) -> str:
    """Keeps a written country code and the last two digits."""
    code = f"+{found.number.country_code}" if found.raw_string.lstrip().startswith(("+", "＋")) else ""
    return f"{code}{MARKS}{found.raw_string[-2:]}"
