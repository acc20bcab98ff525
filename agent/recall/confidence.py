"""Estimates the chance, 0 to 1, that something in the scope answers the question. Pure.

The score of the best turn does not show this chance: a question about something that nobody mentioned, asked in common
words, gets as high a score as any other. Two features of the words show it, and similarity of vectors adds nothing:

held   the share of the question's informative words (by their rarity in the scope) that the best turn or a turn beside
       it contains: near 0 if nobody ever talked about the subject
lead   the share of these words in the turns of the people named in the question, minus their share in the turns of all
       others, each as the mean of the three best turns: negative if the question asks Ann about Bob's words; 0 if the
       question names nobody or everybody

A logistic function of both is the confidence; `make eval` fits it and measures it (docs/evaluation.md).
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.models.language import is_chinese
from turnlog.agent.models.prompts import DOUBT, DOUBT_ZH
from turnlog.agent.recall.ranking import ROLES, rarity
from turnlog.agent.recall.scope import Floats, ScopeIndex
from turnlog.projectors.models.terms import terms as to_terms

LOW = 0.5  # below it, the scope more likely has no answer
BEST_TURNS = 3  # number of best turns to compare, of the people named and of all others
ASKED = 0.5  # the weight of words in a turn that is a question
BIAS, HELD, LEAD = -0.9, 4.0, 10.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """A scope's evidence for an answer to a question. words: the informative terms of a question with their shares of
    its information, which add up to 1."""

    words: Mapping[str, float]
    held: float
    lead: float

    @property
    def confidence(self) -> float:
        """Returns the chance that something in the scope answers the question, on the assumption that three of four
        questions have an answer."""
        return 1 / (1 + math.exp(-(BIAS + HELD * self.held + LEAD * self.lead)))

    def also_in(self, texts: Iterable[str]) -> "Evidence":
        """Returns the evidence together with texts that were found elsewhere, such as memories."""
        held = (sum(self.words.get(term, 0) for term in set(to_terms(text))) for text in texts)
        return replace(self, held=max([self.held, *held]))


def doubt(evidence: Evidence | None, question: str, also: Iterable[str]) -> str | None:
    """Returns a line that warns a model of a low confidence, in the question's language; None if the confidence is not
    low or cannot be judged. also: other texts that the model gets."""
    if evidence is None or evidence.also_in(also).confidence >= LOW:
        return None
    return DOUBT_ZH if is_chinese(question) else DOUBT


def evidence_for(
    text: str, scope: ScopeIndex, best: int | None, allowed: NDArray[np.bool_] | None = None
) -> Evidence | None:
    """Returns a scope's evidence for an answer; None for a text without search words other than speakers' names. best:
    number of the best chunk; None if there is none. allowed: as for `rank`."""
    asked = list(dict.fromkeys(to_terms(text)))
    names = scope.names - ROLES
    words = [word for word in asked if word not in names]
    if not words:
        return None
    usable = np.ones(scope.count, dtype=np.bool_) if allowed is None else allowed
    shares = _shares(words, scope)
    named = [name for name in asked if name in names]
    held = 0.0 if best is None else _held(shares, scope, best, usable)
    return Evidence(shares, held, _lead(shares, scope, named, usable))


def _shares(words: Sequence[str], scope: ScopeIndex) -> dict[str, float]:
    frequency = np.array([scope.frequency(word) for word in words])
    gain = rarity(frequency, scope.statistics.size)
    return dict(zip(words, (gain / max(float(gain.sum()), 1e-6)).tolist(), strict=True))


def _held(shares: Mapping[str, float], scope: ScopeIndex, best: int, usable: NDArray[np.bool_]) -> float:
    beside = scope.distance[0] == 1 if scope.distance else np.zeros(0, dtype=np.bool_)
    near = [best]
    near += [best - 1] if best > 0 and beside[best - 1] else []
    near += [best + 1] if best < len(beside) and beside[best] else []
    rows = [row for row in near if usable[row]]
    return sum(share for word, share in shares.items() if scope.with_word(word)[rows].any())


def _lead(shares: Mapping[str, float], scope: ScopeIndex, named: Collection[str], usable: NDArray[np.bool_]) -> float:
    theirs = np.zeros(scope.count, dtype=np.bool_)
    for name in named:
        theirs[scope.speakers.with_term(name)] = True
    if not theirs.any() or theirs.all():
        return 0.0
    said = np.zeros(scope.count, dtype=np.float32)
    for word, share in shares.items():
        said[np.unique(scope.said.with_term(word))] += share
    said *= (1 - ASKED * scope.asks) * usable
    return _of_best(said[theirs]) - _of_best(said[~theirs])


def _of_best(said: Floats) -> float:
    return float(np.sort(said)[-BEST_TURNS:].sum()) / BEST_TURNS
