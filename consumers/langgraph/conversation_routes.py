"""Routes of the conversation graph: which agent answers a question, and with which documents (pure)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.team.router import Rule
from turnlog.agent.team.router import route as route_by_rules
from turnlog.events.errors import TurnlogError
from turnlog.projectors.models.store.lookup import MEMORIES as MEMORIES_LABEL

GENERAL = "general"


class InvalidRoute(TurnlogError, ValueError):
    """A route's definition cannot be used."""

    code = "invalid-route"


@dataclass(frozen=True, slots=True)
class Route:
    """A route: the agent that answers, and the documents it uses. patterns: regular expressions, ignoring case;
    keywords: words in any language; confidence: how far the route is trusted, 0 to 1. kb_prefix: the store's namespace
    with its documents; empty or `general` means none. Raises InvalidRoute."""

    name: str
    keywords: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    kb_prefix: str = ""
    agent_type: str = GENERAL
    confidence: float = 0.9

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


def best_route(routes: Sequence[Route], text: str) -> Route:
    """Returns the first route with the highest confidence if the fast router is sure of it, otherwise the general
    one.
    """
    rules = [Rule(str(at), route.patterns, route.keywords, route.confidence) for at, route in enumerate(routes)]
    decision = route_by_rules(text, rules)
    is_sure = decision.agent is not None and not decision.should_use_llm
    return routes[int(decision.agent or 0)] if is_sure else Route(GENERAL)
