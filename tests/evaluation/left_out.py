"""Fits the weights that depend on the genre, without vectors, and tests them on data that was left out.

It is a coordinate search over a coarse grid, from values that one would assume without data. A weight is changed only
if the score gains at least EARNS, because smaller gains are chance: a gain in one genre is a loss in another. The
search runs once without an entire genre; for properties that only this genre has (long answers of an assistant occur
only in BEAM) the assumption is kept. It also runs without every second conversation of each genre and is tested on
these.
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

# b: the default of search engines (Anserini). assistant: a person's own words count twice as much as those of a long
# answer. monologue, time, thread, session: off.
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
)  # no turns are used both for fitting and for testing
QUESTIONS = 150  # per half of a genre, spread over its conversations; enough for a coarse grid
ROUNDS = 2
EARNS = 0.003  # gain in the mean share of evidence

Score = Callable[[Weights], float]


class Halves:
    """The genres in halves of their conversations, and the score of weights for each half."""

    def __init__(self, genres: Iterable[Genre]) -> None:
        self.halves = {(genre.name, at): genre.conversations[at::2] for genre in genres for at in (0, 1)}
        self.names = list(dict.fromkeys(name for name, _ in self.halves))
        self._scores = {at: _score(_some(told)) for at, told in self.halves.items()}

    def fitted(self, names: Sequence[str], halves: Sequence[int] = (0, 1)) -> Weights:
        """Returns the best weights for these genres, with the same importance for each genre."""
        scores = [self._scores[name, at] for name in names for at in halves]
        return searched(lambda weights: float(np.mean([score(weights) for score in scores])))


def searched(score: Score) -> Weights:
    """Returns the weights after improving one weight after the other until no change gains enough."""
    best = START
    for _ in range(ROUNDS):
        before = best
        for name, values in GRID.items():
            candidate = max((replace(best, **{name: value}) for value in values), key=score)
            best = candidate if score(candidate) > score(best) + EARNS else best
        if best == before:
            break
    return best


def left_out(genres: Sequence[Genre]) -> tuple[dict[str, list[Line]], dict[str, Weights]]:
    """Returns for each genre the lines "genre left out" and "half left out", and all fitted weights by the part left
    out."""
    known = Halves(genres)
    fits = {", ".join(out): known.fitted([name for name in known.names if name not in out]) for out in TOGETHER}
    fits |= {f"half {at + 1}": known.fitted(known.names, [1 - at]) for at in (0, 1)}
    fits["nothing"] = known.fitted(known.names)
    lines: dict[str, list[Line]] = {}
    for genre in genres:
        [without] = [", ".join(out) for out in TOGETHER if genre.name in out]
        outcomes = [
            outcome
            for at in (0, 1)
            for told in known.halves[genre.name, at]
            for outcome in outcomes_of(told, shipped(fits[f"half {at + 1}"], vectors=False))
        ]
        lines[genre.name] = [
            line("genre left out", genre.conversations, shipped(fits[without], vectors=False)),
            summed("half left out", outcomes),
            line("fitted on all", genre.conversations, shipped(fits["nothing"], vectors=False)),
        ]
    return lines, fits


def _score(conversations: Sequence[Conversation]) -> Score:
    """Returns a function that scores weights by the mean share of evidence among the first 5 and 10 results."""

    @cache
    def score(weights: Weights) -> float:
        ranker = shipped(weights, vectors=False, depth=10)
        shares = [outcome.share for told in conversations for outcome in outcomes_of(told, ranker)]
        return float(np.mean([(share[5] + share[10]) / 2 for share in shares]))

    return score


def _some(conversations: Sequence[Conversation]) -> list[Conversation]:
    """Returns the conversations with every nth question, without conversations that have no question left."""
    asked = [(at, question) for at, conversation in enumerate(conversations) for question in conversation.questions]
    chosen = asked[:: max(1, len(asked) // QUESTIONS)]
    kept = [
        replace(conversation, questions=[question for of, question in chosen if of == at])
        for at, conversation in enumerate(conversations)
    ]
    return [conversation for conversation in kept if conversation.questions]
