"""Routes of the conversation graph: which agent answers a question, and from which documents (pure)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.events.errors import TurnlogError
from turnlog.projectors.models.store.lookup import MEMORIES as MEMORIES_LABEL

GENERAL = "general"
THRESHOLD, PATTERN_SCORE, KEYWORD_SCORE, MANY_KEYWORDS, MANY_SCORE = 0.7, 0.5, 0.15, 3, 0.2


class InvalidRoute(TurnlogError, ValueError):
    """A route cannot be used as it is."""

    code = "invalid-route"


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers, and from which documents. patterns: regular expressions, case does not matter; keywords: words, in
    any language. kb_prefix: the store's namespace of its documents; empty or `general`: none. Raises InvalidRoute."""

    name: str
    keywords: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    kb_prefix: str = ""
    agent_type: str = GENERAL

    def __post_init__(self) -> None:
        if "." in self.kb_prefix or self.kb_prefix == MEMORIES_LABEL:
            raise InvalidRoute(
                f"route {self.name!r} looks up documents in {self.kb_prefix!r}; name one label of the store, without "
                f"dots and other than {MEMORIES_LABEL!r}, which holds what belongs to single users"
            )
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                problem = f"route {self.name!r} has a pattern {pattern!r} that is not a regular expression: {error}"
                raise InvalidRoute(problem) from error

    def score(self, text: str) -> float:
        """Returns 0 to 1: a pattern that matches counts 0.5, each keyword 0.15, three or more keywords 0.2 more.

        Latin keywords are found whole ("ps" is not in "tips"), also right beside Chinese.
        """
        words = (
            rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])" if word.isascii() else re.escape(word)
            for word in self.keywords
        )
        found = sum(bool(re.search(word, text, re.IGNORECASE | re.ASCII)) for word in words)
        matches = any(re.search(pattern, text, re.IGNORECASE) for pattern in self.patterns)
        total = PATTERN_SCORE * matches + KEYWORD_SCORE * found + MANY_SCORE * (found >= MANY_KEYWORDS)
        return min(1.0, total)


def best_route(routes: Sequence[Route], text: str) -> Route:
    """Returns the first route of the highest score of at least THRESHOLD, or else the general one."""
    best = max(routes, key=lambda route: route.score(text), default=None)
    return best if best is not None and best.score(text) >= THRESHOLD else Route(GENERAL)
