"""Chooses suggestions of what to ask next, by the rules in an agent's file and the results of its tools."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.agent.answering.pieces import Round
from turnlog.agent.team.plans import value_at
from turnlog.agent.team.teams import Agent, Suggestion

MOST = 3
MOST_CHARS = 80  # maximum characters of a part of a result
_PART = re.compile(r"\{(\w+)((?:\.\w+|\[\d{1,4}\])*)\}")


def suggestions_of(agent: Agent, rounds: Sequence[Round], locale: str) -> tuple[str, ...]:
    """Returns the agent's suggestions that fit an answer, at most MOST, in the order of its file.

    rounds: the rounds of the answer. A suggestion that names a part of a result is left out if that part is missing, or
    is neither text nor a number. locale: the preferred language of the texts, such as `en-US`. If a suggestion lacks
    it, the language without the region is used, else English, else any language that it has.
    """
    results = _results(rounds)
    fitting = (_filled(_text(rule, locale), results) for rule in agent.suggestions if _fits(rule, results))
    return tuple(dict.fromkeys(text for text in fitting if text is not None))[:MOST]


def _results(rounds: Sequence[Round]) -> dict[str, Any]:
    """Returns the last successful result of each tool."""
    results = dict[str, Any]()
    for made in rounds:
        for call, result in made.results:
            if not result.is_error:
                try:
                    results[call.name] = json.loads(result.text)
                except ValueError:
                    results[call.name] = result.text
    return results


def _fits(rule: Suggestion, results: Mapping[str, Any]) -> bool:
    return (not rule.after or any(tool in results for tool in rule.after)) and not any(
        tool in results for tool in rule.without
    )


def _text(rule: Suggestion, locale: str) -> str:
    known = rule.texts
    fallback = next(iter(known.values()))
    return known.get(locale) or known.get(locale.split("-")[0]) or known.get("en") or fallback


def _filled(text: str, results: Mapping[str, Any]) -> str | None:
    """Returns the text with each `{tool.path}` replaced by that part of a result; None if one is missing."""
    filled, end = "", 0
    for match in _PART.finditer(text):
        try:
            value = value_at(results[match[1]], match[2])
        except LookupError:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not (word := _flat(str(value))):
            return None
        filled += text[end : match.start()] + word
        end = match.end()
    return filled + text[end:]


def _flat(word: str) -> str:
    return " ".join(word.split())[:MOST_CHARS]
