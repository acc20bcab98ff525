"""Whether a model's text may stand for the memories it was made of: nothing invented, and of a merge nothing lost (M6).

Numbers, dates and names are held against the members letter by letter, the rest by how many of its words they have.
It refuses much that a person would let pass; then the members stay as they are, which harms nobody. Pure.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from turnlog.agent.memories.claims import negations, numbers
from turnlog.agent.memories.joints import Method
from turnlog.agent.models.json_text import json_value
from turnlog.agent.models.language import CJK, is_chinese
from turnlog.projectors.memory_text import normal
from turnlog.projectors.terms import terms

MOST_CHARS = 600
JOINING_CHARS = 20  # what a merge may be longer than its members together
NEW_WORDS = 1 / 3  # share of the text's words that no member has, at most
KEPT_WORDS = 1 / 2  # share of each member's words that a merge has, at least
_WORD = re.compile(r"[^\W\d_][\w&'’-]*")
_POSSESSIVE = re.compile(r"['’]s?\Z")
_SPEAKER = re.compile(r"I(?:['’](?:m|ve|d|ll))?")
_VERB = re.compile(r"(?:s|ed|ing)\Z")  # "Lives in", "Moved to": how memories begin
_STARTS = re.compile(r"(?:\A|[.!?;:。！？；：\n])[\s\"“‘'(（]*\Z")
# Dates without a number; those with a capital count as names, and Chinese ones by their characters.
_WHEN = re.compile(
    r"\b(?:today|yesterday|tomorrow|tonight|now|recently|soon|ago|last|next|past|(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|day|week|weekend|month|year|spring|summer|autumn|winter|morning|evening|night)s?\b"
)
# Chinese characters that join or frame and name nobody.
_JOINING = frozenset("和与及并且也还都又而但是的了在有对为以同时此外另经常很最她他它其们用户个这那会想要爱喜欢非最曾过")
# No numbers, though they are written with a number's character.
_NO_NUMBER = re.compile(r"一起|一样|一直|一些|一般|一定|一边|一下|一个|之一|统一|唯一|同一|万一|千万|十分|另一")


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    text: str | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A text that may become a memory, or why none may: then the text is empty."""

    text: str
    refused: str | None = None


def judged(method: Method, contents: Sequence[str], answer: str) -> Judged:
    """contents: of the members, of one language. answer: as the model wrote it."""
    try:
        text = _Answer.model_validate(json_value(answer)).text
    except ValidationError:
        return Judged("", "malformed")
    text = " ".join((text or "").split())
    if not text:
        return Judged("", "declined")
    reason = _refused(method, contents, text)
    return Judged("" if reason else text, reason)


def longest(method: Method, contents: Sequence[str]) -> int:
    """Characters that a text may have. A summary is shorter than what it stands for."""
    total = sum(map(len, contents))
    return min(MOST_CHARS, total + JOINING_CHARS if method == "merge" else total)


def _refused(method: Method, contents: Sequence[str], text: str) -> str | None:
    told = "\n".join(contents)
    if len(text) > longest(method, contents):
        return "too-long"
    if is_chinese(text) != is_chinese(told):
        return "other-language"
    if not _numbers(text) <= _numbers(told):
        return "number-not-said"
    if not _dates(text) <= _dates(told):
        return "date-not-said"
    if not _names_nobody_new(text, told):
        return "name-not-said"
    if not _negates_as(contents, text):
        return "negation"
    said, known = terms(text), set(terms(told))
    new = [term for term in said if term not in known]
    if not said or len(new) > NEW_WORDS * len(said):
        return "other-words"
    return "left-out" if method == "merge" and any(_leaves_out(text, one) for one in contents) else None


def _leaves_out(text: str, member: str) -> bool:
    words, said = set(terms(member)), set(terms(text))
    names = {normal(name) for name, opens in _names(member) if not (opens and _VERB.search(name))}
    return (
        not _numbers(member) <= _numbers(text)
        or not names <= set(map(normal, _words(text)))
        or len(words & said) < KEPT_WORDS * len(words)
    )


def _numbers(text: str) -> set[str]:
    """Without signs: the one in 2026-05-08 is none."""
    return {number.lstrip("+-") for number in numbers(_NO_NUMBER.sub(" ", normal(text)))}


def _dates(text: str) -> set[str]:
    return {found.rstrip("s") for found in _WHEN.findall(normal(text))}


def _names_nobody_new(text: str, told: str) -> bool:
    """A capital at the beginning of a sentence is none of a name's if the members have the word, in another form."""
    known, stems = set(map(normal, _words(told))), set(terms(told))
    for name, opens in _names(text):
        if normal(name) not in known and not (opens and set(terms(name)) <= stems):
            return False
    return set(CJK.findall(text)) <= set(CJK.findall(told)) | _JOINING


def _negates_as(contents: Sequence[str], text: str) -> bool:
    """Where no member negates the text does not, and where one does, it does: at most as often as all together."""
    told, said = sum(negations(normal(one)) for one in contents), negations(normal(text))
    return (said > 0) == (told > 0) and said <= told


def _names(text: str) -> Iterator[tuple[str, bool]]:
    """Words with a capital, each with whether it may have that for beginning a sentence."""
    flat = unicodedata.normalize("NFKC", text)
    for found in _WORD.finditer(flat):
        word = _POSSESSIVE.sub("", found.group())
        if any(char.isupper() for char in word) and not _SPEAKER.fullmatch(word):
            yield word, word.istitle() and bool(_STARTS.search(flat[: found.start()]))


def _words(text: str) -> list[str]:
    return [_POSSESSIVE.sub("", word) for word in _WORD.findall(unicodedata.normalize("NFKC", text))]
