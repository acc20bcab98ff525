"""route: who answers, and whether documents are looked up first (seed D 2.3.3; scores of G2, seed E 3.5)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.consumers.langgraph.graph.state import ConversationState, Node, Update, question
from turnlog.events.errors import TurnlogError
from turnlog.projectors.models.store.lookup import MEMORIES

GENERAL = "general"
THRESHOLD = 0.7
PATTERN_SCORE = 0.5
KEYWORD_SCORE = 0.15
MANY_KEYWORDS = 3
MANY_SCORE = 0.2


class InvalidRoute(TurnlogError, ValueError):
    """A route cannot be used as it is."""

    code = "invalid-route"


@dataclass(frozen=True, slots=True)
class Route:
    """A rule. patterns: regular expressions, case does not matter; keywords: words, in any language.

    kb_prefix: the store's namespace whose documents belong to it; empty or `general`: none. Raises InvalidRoute.
    """

    name: str
    keywords: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    kb_prefix: str = ""
    agent_type: str = GENERAL

    def __post_init__(self) -> None:
        if "." in self.kb_prefix or self.kb_prefix == MEMORIES:
            raise InvalidRoute(
                f"route {self.name!r} looks up documents in {self.kb_prefix!r}; name one label of the store, without "
                f"dots and other than {MEMORIES!r}, which holds what belongs to single users"
            )
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidRoute(
                    f"route {self.name!r} has a pattern {pattern!r} that is not a regular expression: {error}"
                ) from error


def choose_route(text: str, routes: Sequence[Route]) -> Route | None:
    """The route with the highest score of at least THRESHOLD, the first among equals; None if none reaches it."""
    scores = [score(text, route) for route in routes]
    best = max(scores, default=0.0)
    return routes[scores.index(best)] if best >= THRESHOLD else None


def score(text: str, route: Route) -> float:
    """0 to 1: a pattern that matches counts 0.5, each keyword 0.15, three or more keywords 0.2 more."""
    found = sum(_contains(text, keyword) for keyword in route.keywords)
    matches = any(re.search(pattern, text, re.IGNORECASE) for pattern in route.patterns)
    total = PATTERN_SCORE * matches + KEYWORD_SCORE * found + MANY_SCORE * (found >= MANY_KEYWORDS)
    return min(1.0, total)


def _contains(text: str, keyword: str) -> bool:
    """Latin words are found whole ("ps" is not in "tips"), also right beside Chinese ones."""
    if not keyword.isascii():
        return keyword.lower() in text.lower()
    return bool(re.search(rf"(?<![a-z0-9]){re.escape(keyword)}(?![a-z0-9])", text, re.IGNORECASE | re.ASCII))


def route_node(routes: Sequence[Route]) -> Node:
    async def route(state: ConversationState) -> Update:
        """Decides for every message; the documents of the turn before are cleared."""
        chosen = choose_route(question(state["messages"]), routes)
        prefix = (chosen.kb_prefix if chosen else "") or GENERAL
        return {
            "kb_prefix": prefix,
            "agent_type": chosen.agent_type if chosen else GENERAL,
            "use_retrieval": prefix != GENERAL,
            "retrieval_results": None,
            "debug": {"route": chosen.name if chosen else GENERAL},
        }

    return route
