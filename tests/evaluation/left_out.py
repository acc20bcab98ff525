"""Weights that tell genres apart, chosen by words alone without what they are tested on.

A coordinate search over a coarse grid, from what one would assume without data. A weight leaves its start only where
that earns EARNS: smaller gains are chance, and what is won by them in one genre is lost in another. Once without a
whole genre: of what only that genre shows (long answers of an assistant are in BEAM alone) the assumption is left. Once
without every second conversation of every genre, tested on these.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf

import numpy as np

from turnlog.agent.recall.ranking import Weights

from .genres import BEAM, BEAM_POOLED, LOCOMO, LOCOMO_POOLED, ONE_THREAD, POOLED, Genre
from .locomo import Conversation
from .turns import Line, line, outcomes_of, shipped, summed

# b: as search engines ship it (Anserini). assistant: the words of the person whose memory it is count twice those of a
# long answer. monologue, time, thread, session: off.
START = Weights(b=0.4, brief=15.0, assistant=0.5, monologue=1.0, time=0.0, thread=0.0, session=0.0)
GRID: Mapping[str, tuple[float, ...]] = {
    "brief": (10.0, 15.0, 20.0, inf),
    "assistant": (0.0, 0.25, 0.5, 0.75),
    "b": (0.2, 0.4, 0.6),
    "monologue": (0.25, 0.5, 0.75, 1.0),
    "words": (1.0, 1.5, 2.0),
    "time": (0.0, 0.3, 0.6, 1.0),
    "thread": (0.0, 0.2, 0.4, 0.6),
    "session": (0.0, 0.1, 0.2, 0.4),
}
TOGETHER = (
    (LOCOMO, LOCOMO_POOLED),
    (BEAM, BEAM_POOLED),
    (POOLED, ONE_THREAD),
)  # the same turns are never learned from and tested
QUESTIONS = 150  # of a half of a genre, spread over its conversations: enough to choose from a coarse grid
ROUNDS = 2
EARNS = 0.003  # of the mean share of evidence

Score = Callable[[Weights], float]


class Halves:
    """The genres by halves of their conversations, and how good weights are for each."""

    def __init__(self, genres: Iterable[Genre]) -> None:
        self.halves = {(one.name, at): one.conversations[at::2] for one in genres for at in (0, 1)}
        self.names = list(dict.fromkeys(name for name, _ in self.halves))
        self._scores = {at: _score(_some(told)) for at, told in self.halves.items()}

    def fitted(self, names: Sequence[str], halves: Sequence[int] = (0, 1)) -> Weights:
        """The weights that are best for these genres, each counting the same."""
        scores = [self._scores[name, at] for name in names for at in halves]
        return searched(lambda weights: float(np.mean([score(weights) for score in scores])))


def searched(score: Score) -> Weights:
    """One weight after the other, until none earns enough."""
    best = START
    for _ in range(ROUNDS):
        before = best
        for name, values in GRID.items():
            found = max((replace(best, **{name: value}) for value in values), key=score)
            best = found if score(found) > score(best) + EARNS else best
        if best == before:
            break
    return best


def left_out(genres: Sequence[Genre]) -> tuple[dict[str, list[Line]], dict[str, Weights]]:
    """For each genre the lines "genre left out" and "half left out"; and all fitted weights by what they left out."""
    known = Halves(genres)
    fits = {", ".join(out): known.fitted([name for name in known.names if name not in out]) for out in TOGETHER}
    fits |= {f"half {at + 1}": known.fitted(known.names, [1 - at]) for at in (0, 1)}
    fits["nothing"] = known.fitted(known.names)
    lines: dict[str, list[Line]] = {}
    for genre in genres:
        [without] = [", ".join(out) for out in TOGETHER if genre.name in out]
        found = [
            one
            for at in (0, 1)
            for told in known.halves[genre.name, at]
            for one in outcomes_of(told, shipped(fits[f"half {at + 1}"], vectors=False))
        ]
        lines[genre.name] = [
            line("genre left out", genre.conversations, shipped(fits[without], vectors=False)),
            summed("half left out", found),
            line("fitted on all", genre.conversations, shipped(fits["nothing"], vectors=False)),
        ]
    return lines, fits


def _score(conversations: Sequence[Conversation]) -> Score:
    """The mean share of evidence found among the first 5 and 10."""

    @cache
    def score(weights: Weights) -> float:
        ranker = shipped(weights, vectors=False, depth=10)
        found = [one.share for told in conversations for one in outcomes_of(told, ranker)]
        return float(np.mean([(share[5] + share[10]) / 2 for share in found]))

    return score


def _some(conversations: Sequence[Conversation]) -> list[Conversation]:
    """With every nth question, and without conversations of which none is left."""
    asked = [(at, question) for at, one in enumerate(conversations) for question in one.questions]
    chosen = asked[:: max(1, len(asked) // QUESTIONS)]
    kept = [
        replace(one, questions=[question for of, question in chosen if of == at])
        for at, one in enumerate(conversations)
    ]
    return [one for one in kept if one.questions]
