"""The fast router: decides by rules which agent answers a question, so that clear questions need no model call."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

PATTERN_SCORE, KEYWORD_SCORE, MANY_SCORE, MANY_KEYWORDS = 0.5, 0.15, 0.2, 3
THRESHOLD = 0.7
SIMPLE = "simple_qa"  # reported as the matched keyword if a simple answer fits


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for the questions that an agent answers. patterns: regular expressions, ignoring case; keywords: words in
    any language; confidence: how far the rule is trusted, 0 to 1."""

    agent: str
    patterns: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    confidence: float = 0.9


@dataclass(frozen=True, slots=True)
class SimpleAnswer:
    """A fixed answer to questions that the pattern matches."""

    pattern: str
    answer: str


@dataclass(frozen=True, slots=True)
class Routing:
    """The router's decision. agent: the agent of the best rule; None if no rule matches or `answer` is set.
    should_use_llm: the rules are not sure enough, so the team's entry agent decides. answer: a fixed answer."""

    agent: str | None
    confidence: float
    matched_keywords: tuple[str, ...]
    should_use_llm: bool
    answer: str | None = None


def route(question: str, rules: Sequence[Rule], simple: Sequence[SimpleAnswer] = ()) -> Routing:
    """Returns the decision for a question. The first rule of the highest confidence wins; at THRESHOLD or above its
    agent answers directly."""
    text = unicodedata.normalize("NFKC", question)
    for known in simple:
        if _compiled(known.pattern).search(text):
            return Routing(None, 1.0, (SIMPLE,), False, known.answer)
    best = Routing(None, 0.0, (), True)
    for rule in rules:
        confidence, matched = score(text, rule)
        if confidence > best.confidence:
            best = Routing(rule.agent, confidence, matched, confidence < THRESHOLD)
    return best


def score(text: str, rule: Rule) -> tuple[float, tuple[str, ...]]:
    """Returns a rule's confidence for a text, 0 to 1, and the keywords found in the text.

    One or more matching patterns count 0.5, each keyword 0.15, three or more keywords another 0.2; the sum is
    multiplied by the rule's confidence. Keywords in Latin letters match whole words: "ps" does not match "tips".
    """
    matched = tuple(word for word in rule.keywords if _compiled(_as_pattern(word)).search(text))
    points = KEYWORD_SCORE * len(matched) + MANY_SCORE * (len(matched) >= MANY_KEYWORDS)
    points += PATTERN_SCORE * any(_compiled(pattern).search(text) for pattern in rule.patterns)
    return min(1.0, round(points * rule.confidence, 6)), matched


@lru_cache(maxsize=2048)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _as_pattern(keyword: str) -> str:
    """Returns a regular expression for a keyword. No ASCII letter or digit may stand directly before or after a Latin
    keyword, but a Chinese character may."""
    before = r"(?<![a-z0-9])" if keyword[0].isascii() else ""
    after = r"(?![a-z0-9])" if keyword[-1].isascii() else ""
    return f"{before}{re.escape(keyword)}{after}"
