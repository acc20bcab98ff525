"""Masks sensitive parts of a text, depending on a level. Pure.

LIGHT, for turnlog's own logs, masks secrets, identity numbers and card numbers. MODERATE, for exports, also masks mail
addresses, phone numbers and identity numbers with a typing error. FULL, for publication, also masks grades. The result
is deterministic, and sanitising it again changes nothing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from turnlog.agent.memory.sanitiser import identifiers

REGIONS = ("CN", "US")
MASK = "****"
_AGAIN = 8
_SECRET_NAMES = re.compile(
    r"(?:^|[_\-.])(?:password|passwd|pwd|secret|api[_-]?key|access[_-]?key|access[_-]?token|refresh[_-]?token|密码)$",
    re.IGNORECASE,
)


class SanitiseLevel(IntEnum):
    """The level of masking; each level includes the ones before it."""

    LIGHT = 1
    MODERATE = 2
    FULL = 3


def sanitise(text: str, level: SanitiseLevel, regions: Sequence[str] = REGIONS) -> str:
    """Returns the text, masked according to the level. regions: countries in which to look up phone numbers without a
    country code."""
    for _ in range(_AGAIN):  # a mask can create a word boundary at which another pattern matches
        result = _once(text, level, regions)
        if result == text:
            break
        text = result
    return text


def holds_secret(text: str) -> bool:
    """Returns whether a text contains anything that LIGHT masks, or a password or PIN in any form."""
    return bool(_CONFIDED.search(text)) or sanitise(text, SanitiseLevel.LIGHT) != text


def mask_secrets(text: str) -> str:
    """Returns the text with secrets masked: everything that LIGHT masks, and passwords and PINs in sentences such as
    "my wifi password is …"."""
    text = sanitise(text, SanitiseLevel.LIGHT)
    kept, end = "", 0
    for said in _CONFIDED.finditer(text):
        if (begin := said.start(said.lastindex or 0)) < end or text.startswith(MASK, begin):
            continue
        value = (_CLAUSE if _OF_WORDS.search(said[0]) else _WORD).match(text, begin)
        kept, end = kept + text[end:begin] + MASK, value.end() if value else said.end()
    return kept + text[end:]


def sanitise_json(value: Any, level: SanitiseLevel, regions: Sequence[str] = REGIONS) -> Any:
    """Returns a JSON value with every string sanitised; the value of a key such as `password` is masked completely.
    Keys stay."""
    return sanitised_json(value, lambda text: sanitise(text, level, regions))


def _once(text: str, level: SanitiseLevel, regions: Sequence[str]) -> str:
    text = _secrets_masked(text)
    text = identifiers.masked(text, exact=level < SanitiseLevel.MODERATE)
    if level >= SanitiseLevel.MODERATE:
        text = identifiers.mails_masked(text)
        text = identifiers.phones_masked(text, tuple(regions))
    return identifiers.grades_masked(text) if level >= SanitiseLevel.FULL else text


def sanitised_json(value: Any, clean: Callable[[str], str]) -> Any:
    """Sanitises a JSON value like sanitise_json, but with the function `clean` for strings."""
    match value:
        case str():
            return clean(value)
        case Mapping():
            return {name: _named(str(name), item, clean) for name, item in value.items()}
        case list() | tuple():
            return [sanitised_json(item, clean) for item in value]
    return value


def _named(name: str, value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str) and value and _SECRET_NAMES.search(name):
        return MASK
    return sanitised_json(value, clean)


# Secrets: keys of known services, tokens, private keys, passwords. Every pattern begins at a boundary and can match a
# text in only one way, so the time is linear in the length of the text. Source of the prefixes: the services'
# documentation.
_BEFORE = r"(?<![A-Za-z0-9_])"
_TOKENS = re.compile(
    _BEFORE
    + r"(?:"
    + r"|".join(
        (
            r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and compatible services
            r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
            r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",  # AWS
            r"gh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
            r"github_pat_[A-Za-z0-9_]{20,}",
            r"glpat-[A-Za-z0-9_-]{16,}",  # GitLab
            r"xox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
            r"AIza[A-Za-z0-9_-]{30,}",  # Google
            r"hf_[A-Za-z0-9]{20,}",  # Hugging Face
            r"npm_[A-Za-z0-9]{30,}",
            r"pypi-[A-Za-z0-9_-]{30,}",
            r"LTAI[A-Za-z0-9]{12,}",  # Alibaba Cloud
            r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",  # a JWT
        )
    )
    + r")"
)
_BEARER = re.compile(_BEFORE + r"(bearer|basic)( {1,4})(?=[^\s]{0,200}[0-9=])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_URL = re.compile(r"(?<=://)([^/\s:@]{0,100}):[^/\s@]{1,200}(?=@)")
_NAMES = r"(?:password|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key|(?:access|refresh|auth)[_-]?token)"
_ASSIGNED = re.compile(
    rf"((?:(?<![A-Za-z])|_){_NAMES}[\"']?\s{{0,3}}=\s{{0,3}}[\"']?)([^\s\"',;&]{{3,}})", re.IGNORECASE
)
# In prose any word may follow a colon, so only a word with a digit counts as a password.
_SAID = re.compile(
    rf"((?:(?<![A-Za-z]){_NAMES}[\"']?(?:\s{{0,3}}:\s{{0,3}}|\s{{1,3}}is\s{{1,3}})[\"']?)"
    r"|(?:密码|口令)\s{0,3}(?:[:：=]|是|为)\s{0,3})(?=[!-~]{0,100}[0-9])([!#-&(-+\--:<-~]{4,})",
    re.IGNORECASE,
)
# Matches the user's own password, as in "my wifi password is swordfish", but not a rule for passwords ("8 characters").
# The password begins at the group that matched.
_CONFIDED = re.compile(
    r"\b(?:pass(?:word|code|phrase)|pwd|api key|secret key|private key|access token|seed phrase|recovery phrase)"
    r"\b[^.!?\n:=]{0,30}?(?:(?:\b(?:is|are)\b|[:=])\s{0,3}(?!not\b|too\b|very\b|weak\b|strong\b|secure\b|in\b|on\b"
    r"|saved\b|stored\b|lost\b|old\b|new\b|the same\b|changed\b)(\S))"
    r"|\b(?:pin|cvv|cvc)(?: code| number)?(?: (?:for|of) [^.!?\n]{1,30}?)?\s{0,3}(?:is|[:=])?\s{0,3}(\d{3,8})\b"
    r"|(?:密码|口令|密钥|私钥|助记词|验证码|api ?key|token)[^，。！？\n的]{0,4}?"
    r"(?:[:：=]|是|为)\s{0,3}(?!什么|多少|不|很|旧|新|在|空)(\S)",
    re.IGNORECASE,
)
_OF_WORDS = re.compile(r"phrase|private key|助记词", re.IGNORECASE)
_CLAUSE, _WORD = re.compile(r"[^.!?。！？\n]*"), re.compile(r"[^\s，。！？]*?(?=[.!?,;]?(?:[\s，。！？]|$))")
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")


def _secrets_masked(text: str) -> str:
    text = _without_private_keys(text)
    text = _TOKENS.sub(MASK, text)
    text = _BEARER.sub(rf"\1\2{MASK}", text)
    if "://" in text:
        text = _URL.sub(rf"\1:{MASK}", text)

    def named(match: re.Match[str]) -> str:
        return str(match[1]) + MASK

    return _SAID.sub(named, _ASSIGNED.sub(named, text))


def _without_private_keys(text: str) -> str:
    """Masks private keys; a truncated key is masked up to the end of the text."""
    parts, at = [], 0
    while (begin := _KEY_BEGIN.search(text, at)) is not None:
        parts += [text[at : begin.start()], MASK]
        end = _KEY_END.search(text, begin.end())
        at = len(text) if end is None else end.end()
    return "".join([*parts, text[at:]])
