"""Decides whether two memories make the same claim, by their values or by their words. Pure.

Vectors represent the subject of a sentence rather than its claim: "I like tea" and "I like coffee", "I eat meat" and "I
don't eat meat", "born in 1990" and "born in 1991" have near vectors. Closing one of the two as a duplicate would lose a
fact, so similar sentences must also agree in numbers, negation, names and order.
"""

import re
from collections import Counter
from decimal import Decimal

from turnlog.projectors.models.memories.text import normal

_PLAIN_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_CHINESE_NUMBER = re.compile(r"[零〇一二两三四五六七八九十百千万亿]+")
_ENGLISH_NUMBER = re.compile(
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|hundred|thousand"
    r"|first|second|third|once|twice)\b"
)
_NEGATION = re.compile(
    r"\b(?:not|cannot|no|never|none|nobody|nothing|neither|nor|without|stopped|quit|former|formerly|unlike|hardly)\b"
    r"|n't\b|n’t\b|\b(?:dont|doesnt|didnt|isnt|arent|wasnt|cant|wont)\b"
    r"|不|没|別|别|未|无|無|非|勿|莫|戒|讨厌|拒绝|停止|曾经"
)
# Words that contain a character of negation but do not negate.
_NO_NEGATION = re.compile(
    r"特别|别人|分别|区别|级别|性别|告别|个别|非常|非洲|除非|差不多|不仅|不但|不过|不久|无论|未来|不同"
)
_QUOTED = re.compile(r"[\"“”「『《'‘](?P<name>[^\"“”「」『』《》'‘’]{1,80})[\"“”」』》'’](?![a-z])")
_NAME = re.compile(r"(?<![.!?。！？] )(?<!^)\b[A-Z][\w&'-]*")
_TOKEN = re.compile(r"[a-z0-9]+(?:['’][a-z]+)?|[^\W\d_a-z]", re.IGNORECASE)
# The claim changes if the words before and after one of these are exchanged.
_BETWEEN = re.compile(
    r"\b(?:over|than|to|from|before|after|instead of|rather than)\b|胜过|多过|而不是|比(?!起)|更|到|给|教|送|把|被"
)
_FRAME = 0.5  # share of words that must be equal around the single difference between two sentences


def value_of(value: str | None, content: str) -> str:
    """Returns the key by which two memories are compared: the normalised value, or the content if there is no value.
    Numbers are equal if their amounts are."""
    text = normal(value if value is not None else content)
    plain = _THOUSANDS.sub("", text)
    if not _PLAIN_NUMBER.fullmatch(plain):
        return text
    return f"{Decimal(plain).normalize() + 0:f}"


def rank_of(value: str) -> tuple[bool, Decimal, str]:
    """Returns the sort key of KEEP_HIGHEST: the first number in the value; values without a number come first, in text
    order."""
    match = _PLAIN_NUMBER.search(_THOUSANDS.sub("", value))
    return (match is not None, Decimal(match.group()) if match else Decimal(0), value)


def same_claim(first: str, second: str) -> bool:
    """Returns whether two similar sentences may make the same claim.

    Returns False when numbers, negation or names differ, when the sentences differ at one point only ("I live in
    Paris", "I live in Rome"), or when two things are exchanged ("tea over coffee", "coffee over tea").
    """
    left, right = normal(first), normal(second)
    if left == right:
        return True
    return (
        numbers(left) == numbers(right)
        and negations(left) == negations(right)
        and _names(first) == _names(second)
        and not answer_one_question(first, second)
    )


def answer_one_question(first: str, second: str) -> bool:
    """Returns whether two sentences may be different answers to one question: they differ at one point, or two things
    are exchanged."""
    left, right = normal(first), normal(second)
    return _differ_in_one_place(_TOKEN.findall(left), _TOKEN.findall(right)) or _changed_places(left, right)


def may_contradict(first: str, second: str) -> bool:
    """Returns whether two sentences may contradict each other: they answer one question differently, or differ in
    negation, numbers or names."""
    left, right = normal(first), normal(second)
    return (
        answer_one_question(first, second)
        or negations(left) != negations(right)
        or _each_has_its_own(set(numbers(left)), set(numbers(right)))
        or _each_has_its_own(_names(first), _names(second))
    )


def _each_has_its_own(left: set[str], right: set[str]) -> bool:
    return bool(left - right) and bool(right - left)


def numbers(text: str) -> Counter[str]:
    """Returns the numbers of a normalised text: those in digits, in normal form, and those in words."""
    plain = _THOUSANDS.sub("", text)
    digits = (value_of(None, number) for number in _PLAIN_NUMBER.findall(plain))
    return Counter([*digits, *_CHINESE_NUMBER.findall(plain), *_ENGLISH_NUMBER.findall(plain)])


def negations(text: str) -> int:
    """Returns the number of negations in a normalised text."""
    return len(_NEGATION.findall(_NO_NEGATION.sub(" ", text)))


def _names(text: str) -> set[str]:
    """Returns the quoted names, and the capitalised words that do not begin a sentence."""
    quoted = {normal(match["name"]) for match in _QUOTED.finditer(text)}
    return quoted | {normal(name) for name in _NAME.findall(text) if name != "I" and not name.startswith("I'")}


def _changed_places(left: str, right: str) -> bool:
    """Returns whether the words before and after a word of _BETWEEN in one text are exchanged in the other."""
    pairs = ((a, b) for a in _sides(left) for b in _sides(right) if a[0] == b[0])
    return any(a[1] & b[2] and a[2] & b[1] for a, b in pairs)


def _sides(text: str) -> list[tuple[str, set[str], set[str]]]:
    """Returns each word of _BETWEEN with the words that occur only before it and those that occur only after it."""
    sides: list[tuple[str, set[str], set[str]]] = []
    for between in _BETWEEN.finditer(text):
        before = set(_TOKEN.findall(text[: between.start()]))
        behind = set(_TOKEN.findall(text[between.end() :]))
        sides.append((between.group(), before - behind, behind - before))
    return sides


def _differ_in_one_place(left: list[str], right: list[str]) -> bool:
    """Returns whether two sentences differ at one point only and their equal beginnings and ends are at least _FRAME of
    the words."""
    most = min(len(left), len(right))
    before = next((n for n in range(most) if left[n] != right[n]), most)
    after = next((n for n in range(most - before) if left[-1 - n] != right[-1 - n]), most - before)
    shared = before + after
    return most > shared and shared >= _FRAME * max(len(left), len(right))
