"""Masks numbers and addresses that identify a person (identity cards, payment cards, mail addresses, phone numbers),
and grades. Pure.

A payment card number is masked only if its check digit and issuer are valid, so that order numbers and timestamps stay.
With `exact`, the same applies to identity numbers; without it, an identity number with a typing error is masked too,
recognised by its form. Chinese mobile numbers are masked wherever they are. Other digits without a country code or
grouping are masked as a phone number only after a word such as "phone".
"""

import re
from collections.abc import Callable

import phonenumbers
from phonenumbers import Leniency, PhoneNumberMatch, PhoneNumberMatcher
from stdnum import luhn
from stdnum.cn import ric
from stdnum.us import ssn

# Maps full-width ASCII and the ideographic space to ASCII, one character to one, so that positions stay the same.
NARROW = {0xFF00 + place: 0x20 + place for place in range(1, 0x5F)} | {0x3000: 0x20}


def replaced(text: str, pattern: re.Pattern[str], made: Callable[[re.Match[str]], str | None]) -> str:
    """Returns the text with matches of a pattern replaced. made: returns the replacement of a match, or None to leave
    it unchanged."""
    parts, at = [], 0
    for match in pattern.finditer(text.translate(NARROW)):
        new = made(match)
        if new is not None:
            parts += [text[at : match.start()], new]
            at = match.end()
    return "".join([*parts, text[at:]]) if at else text


SSN_MASK, CHINESE_MASK, CARD_MASK, GRADE_MASK = "***-**-****", "*" * 18, "****-****-****-****", "GPA: [已脱敏]"
_FREE, _END = r"(?<![0-9A-Za-z*.])(?<![0-9]-)", r"(?![0-9A-Za-z*])(?!-[0-9])"
_SSN = re.compile(_FREE + r"[0-9]{3}-[0-9]{2}-[0-9]{4}" + _END)
_SSN_NAMED = re.compile(r"((?<![A-Za-z])(?:ssn|social security(?: number)?)[:#\s]{0,3}(?:is )?)([0-9]{9})" + _END, re.I)
_CHINESE = re.compile(_FREE + r"[0-9]{17}[0-9Xx]" + _END)
# Region, date of birth, number. Timestamps and order numbers with 18 digits have no year in this position.
_CHINESE_FORM = re.compile(r"[1-9][0-9]{5}(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])[0-9]{3}[0-9Xx]")
_CHINESE_NAMED = re.compile(r"(?:身份证|公民身份)[^0-9\n]{0,8}$")
_CARD = re.compile(
    _FREE + r"[2-6](?:[0-9]{11,17}|[0-9]{3}(?:[ -][0-9]{4}){3}|[0-9]{3}[ -][0-9]{6}[ -][0-9]{4,5})[0-9]?" + _END
)
# Number ranges of issuers: Visa, Mastercard, American Express, Discover, UnionPay, JCB, Diners, Maestro (ISO/IEC 7812).
_ISSUER = re.compile(
    r"4|5[0-8]|2(?:22[1-9]|2[3-9]|[3-6]|7[01]|720)|3[47]|6(?:011|4[4-9]|5|2|[37])|35(?:2[89]|[3-8])|3(?:0[0-5]|[68])"
)
_MAIL = re.compile(
    r"(?<![A-Za-z0-9._%+*-])([A-Za-z0-9])[A-Za-z0-9._%+-]*@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,24}(?![A-Za-z])"
)
_GRADE = re.compile(
    r"(?<![A-Za-z])(?:gpa|绩点)\s{0,3}(?:[：:=是为]|is|was|of|has been)?\s{0,3}[0-9](?:\.[0-9]{1,3})?(?![0-9])"
    r"(?:\s{0,2}/\s{0,2}[0-9](?:\.[0-9]{1,3})?)?",
    re.IGNORECASE,
)


def masked(text: str, exact: bool) -> str:
    """Masks identity numbers and payment card numbers. exact: mask only valid identity numbers."""
    if not any(c.isdecimal() for c in text):
        return text

    def is_ssn(number: str) -> bool:
        return not exact or bool(ssn.is_valid(number))

    def is_chinese(match: re.Match[str]) -> bool:
        if exact:
            return _is_chinese(match[0])
        named = _CHINESE_NAMED.search(match.string, max(0, match.start() - 12), match.start())
        return bool(named or _CHINESE_FORM.fullmatch(match[0]) or _is_chinese(match[0]))

    text = replaced(text, _CHINESE, lambda m: CHINESE_MASK if is_chinese(m) else None)
    text = replaced(text, _CARD, lambda m: CARD_MASK if _is_card(m[0]) else None)
    text = replaced(text, _SSN_NAMED, lambda m: m[1] + SSN_MASK if is_ssn(m[2]) else None)
    return replaced(text, _SSN, lambda m: SSN_MASK if is_ssn(m[0]) else None)


def mails_masked(text: str) -> str:
    return replaced(text, _MAIL, lambda m: f"{m[1]}***@***") if "@" in text or "＠" in text else text


def grades_masked(text: str) -> str:
    return replaced(text, _GRADE, lambda m: GRADE_MASK)


def _is_chinese(number: str) -> bool:
    try:
        return bool(ric.is_valid(number))
    except KeyError:  # python-stdnum knows the town but not the district
        return True


def _is_card(number: str) -> bool:
    digits = re.sub(r"[ -]", "", number)
    return 13 <= len(digits) <= 19 and _ISSUER.match(digits) is not None and bool(luhn.is_valid(digits))


_MOBILE = re.compile(r"(?<![0-9A-Za-z*.])(?<![0-9]-)(1[3-9][0-9])([ -]?)[0-9]{4}([ -]?)([0-9]{4})(?![0-9*])(?!-[0-9])")
_CODED_MOBILE = re.compile(r"(?<![0-9A-Za-z*.])(\+?86[ -]?)(1[3-9][0-9])[ -]?[0-9]{4}[ -]?([0-9]{4})(?![0-9*])")
_LIKELY = re.compile(r"[0-9０-９](?:[^0-9０-９\n]{0,3}[0-9０-９]){6}")
_PHONE_NAMED = re.compile(
    r"(?:tel|phone|call|mobile|cell|fax|whatsapp|text me|reach me|电话|手机|联系|致电|拨打|号码|座机|传真|微信)"
    r"[^\n]{0,20}$",
    re.IGNORECASE,
)
PHONE_MASK = "****"


def phones_masked(text: str, regions: tuple[str, ...]) -> str:
    if not _LIKELY.search(text):
        return text
    text = replaced(text, _CODED_MOBILE, lambda m: f"{m[1]}{m[2]}{PHONE_MASK}{m[3]}")
    text = replaced(text, _MOBILE, lambda m: f"{m[1]}{PHONE_MASK}{m[4]}")
    for region in regions:
        text = _by_region(text, region)
    return text


def _by_region(text: str, region: str) -> str:
    parts, at = [], 0
    for match in PhoneNumberMatcher(text, region, leniency=Leniency.VALID, max_tries=1_000):
        if _is_phone(text, match):
            parts += [text[at : match.start], _phone_mask(match)]
            at = match.end
    return "".join([*parts, text[at:]]) if at else text


def _is_phone(text: str, match: PhoneNumberMatch) -> bool:
    raw = match.raw_string
    around = text[match.start - 1 : match.start] + text[match.end : match.end + 1]
    if any((c.isalnum() and c.isascii()) or c in "*_" for c in around):
        return False
    if raw.lstrip().startswith(("+", "＋")):
        return True
    if _PHONE_NAMED.search(text, max(0, match.start - 32), match.start):
        return True
    return any(c in raw for c in "-() .") and _is_grouped(match)


def _is_grouped(match: PhoneNumberMatch) -> bool:
    """Returns whether the number is grouped in the usual way of its country."""
    written = [part for part in re.split(r"[^0-9]+", match.raw_string) if part]
    national = phonenumbers.format_number(match.number, phonenumbers.PhoneNumberFormat.NATIONAL)
    usual = [part for part in re.split(r"[^0-9]+", national) if part]
    return len(written) > 1 and written[0] == usual[0] and "".join(written) == "".join(usual)


def _phone_mask(match: PhoneNumberMatch) -> str:
    """Returns the mask of a phone number, which keeps a written country code and the last two digits."""
    code = f"+{match.number.country_code}" if match.raw_string.lstrip().startswith(("+", "＋")) else ""
    return f"{code}{PHONE_MASK}{match.raw_string[-2:]}"
