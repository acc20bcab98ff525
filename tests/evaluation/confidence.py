"""python -m tests.evaluation.confidence [--data DIR]: measures recall's confidence.

It measures how well the confidence of a recall predicts whether there is an answer. It fits the logistic function of
agent/recall/confidence.py, measures it without vectors, and writes the section "Confidence" of docs/evaluation.md.
`make eval` runs it too.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.recall.confidence import BIAS, HELD, LEAD, LOW, Evidence, evidence_for
from turnlog.agent.recall.questions import read_question
from turnlog.agent.recall.ranking import Query, rank_parts

from .document import DOCUMENT, put_section
from .genres import Genre, genres
from .locomo import Array, Conversation

ADVERSARIAL = 5
ANSWERED = "answered"
SHARE = 0.75  # the weight of questions that have an answer: their share in LoCoMo
# The kinds of questions without an answer, by genre. MemDaily has none, so the evidence of questions is removed there.
WITHOUT = {
    "LoCoMo": ("about the other person", "asked elsewhere"),
    "BEAM": ("abstention", "asked elsewhere"),
    "MemDaily, one thread": ("evidence removed", "asked elsewhere"),
}
RIDGE, STEPS = 1e-4, 50
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class Case:
    """A question. features: 1, held, lead. kind: ANSWERED, or the reason why there is no answer."""

    genre: str
    conversation: str
    kind: str
    features: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """The results for one genre, by kind of question. auroc: for each kind without an answer. low: the share with a
    confidence below LOW, also for ANSWERED."""

    genre: str
    auroc: dict[str, float]
    low: dict[str, float]
    brier: float


def cases(genre: Genre) -> list[Case]:
    """Returns the cases of questions that ask for one fact and name something to search for."""
    conversations, rows = genre.conversations, []
    for number, told in enumerate(conversations):
        elsewhere = conversations[(number + 7) % len(conversations)]
        for question in told.questions:
            if question.category == ADVERSARIAL:
                rows.append((told.name, "about the other person", evidence(question.text, told)))
                continue
            others = np.array([question.evidence.isdisjoint(chunk.source_ids) for chunk in told.chunks])
            rows.append((told.name, ANSWERED, evidence(question.text, told)))
            rows.append((told.name, "asked elsewhere", evidence(question.text, elsewhere)))
            if others.any():
                rows.append((told.name, "evidence removed", evidence(question.text, told, others)))
        rows += [(told.name, "abstention", evidence(text, told)) for text in genre.unanswered.get(told.name, ())]
    return [
        Case(genre.name, name, kind, (1.0, support.held, support.lead))
        for name, kind, support in rows
        if support is not None
    ]


def evidence(text: str, told: Conversation, allowed: NDArray[np.bool_] | None = None) -> Evidence | None:
    """Returns the evidence for the best part of a question, as recall computes it."""
    question = read_question(text, names=told.scope.names)
    if question.kind != "fact":
        return None
    queries = [Query(part.text, words_of=question.words_of) for part in question.parts]
    rankings = rank_parts(queries, told.scope, 1, allowed=allowed)
    parts = [
        evidence_for(part.undated, told.scope, best[0].chunk if best else None, allowed)
        for part, best in zip(question.parts, rankings, strict=True)
    ]
    return max((part for part in parts if part), key=lambda part: part.confidence, default=None)


def fit(known: Sequence[Case]) -> Array:
    """Returns BIAS, HELD and LEAD by logistic regression; all genres have the same weight."""
    columns, answered, weight = _columns(known)
    weights = np.zeros(3)
    for _ in range(STEPS):
        chance = _chance(columns, weights)
        slope = columns.T @ (weight * (chance - answered)) + RIDGE * weights
        curve = (columns * (weight * chance * (1 - chance))[:, None]).T @ columns + RIDGE * np.eye(3)
        weights = weights - np.linalg.solve(curve, slope)
    return weights


def by_conversation(known: Sequence[Case]) -> Array:
    """Returns the confidence of each case, fitted on the other conversations. known: the cases of one genre."""
    chance = np.zeros(len(known))
    for name in dict.fromkeys(case.conversation for case in known):
        own = np.array([case.conversation == name for case in known])
        weights = fit([case for case in known if case.conversation != name])
        chance[own] = _chance(_columns(known)[0][own], weights)
    return chance


def measured(known: Sequence[Case], chance: Array) -> Line:
    """Returns the results for the cases of one genre. chance: the confidence of each case."""
    _, answered, weight = _columns(known)
    kinds = np.array([case.kind for case in known])
    by_kind = {kind: chance[kinds == kind] for kind in dict.fromkeys(kinds.tolist())}
    return Line(
        known[0].genre,
        {kind: auroc(by_kind[ANSWERED], values) for kind, values in by_kind.items() if kind != ANSWERED},
        {kind: float((values < LOW).mean()) for kind, values in by_kind.items()},
        float(weight @ (chance - answered) ** 2 / weight.sum()),
    )


def auroc(answered: Array, others: Array) -> float:
    """Returns the probability that a question with an answer has a higher confidence than one without; ties count
    half."""
    higher = (answered[:, None] > others[None, :]).mean()
    return float(higher + (answered[:, None] == others[None, :]).mean() / 2)


def reliability(known: Sequence[Case], weights: Array) -> list[tuple[float, float, float]]:
    """Returns, for each bin that is not empty, the share of cases, their mean confidence and the share with an
    answer."""
    columns, answered, weight = _columns(known)
    chance, rows = _chance(columns, weights), []
    for low, high in pairwise(BINS):
        own = weight * ((chance >= low) & (chance < high))
        if own.sum() > 0:
            rows.append((own.sum() / weight.sum(), own @ chance / own.sum(), own @ answered / own.sum()))
    return rows


def _columns(known: Sequence[Case]) -> tuple[Array, Array, Array]:
    """Returns features, whether there is an answer, and weights. A genre's weights add up to 1; answered cases have
    SHARE of it."""
    weight = np.zeros(len(known))
    places = np.array([(case.genre, case.kind) for case in known])
    for genre, kinds in WITHOUT.items():
        for kind in (ANSWERED, *kinds):
            own = (places == (genre, kind)).all(axis=1)
            weight[own] = (SHARE if kind == ANSWERED else (1 - SHARE) / len(kinds)) / max(own.sum(), 1)
    answered = (places[:, 1] == ANSWERED).astype(float)
    return np.array([case.features for case in known]), answered, weight


def _chance(columns: Array, weights: Array) -> Array:
    return 1 / (1 + np.exp(-columns @ weights))


def section(known: dict[str, list[Case]]) -> str:
    together = [case for genre_cases in known.values() for case in genre_cases]
    fitted, shipped = fit(together), np.array([BIAS, HELD, LEAD])
    folds = {name: fit([case for case in together if case.genre != name]) for name in known}
    many = [genre_cases for genre_cases in known.values() if len({case.conversation for case in genre_cases}) < 20]
    counted = {name: sum(case.kind == ANSWERED for case in genre_cases) for name, genre_cases in known.items()}
    rows = [
        _row("as shipped", measured(genre_cases, _chance(_columns(genre_cases)[0], shipped)))
        for genre_cases in known.values()
    ]
    for name, genre_cases in known.items():
        rows.append(
            _row("genre left out of the fit", measured(genre_cases, _chance(_columns(genre_cases)[0], folds[name])))
        )
    rows += [
        _row("each conversation left out", measured(genre_cases, by_conversation(genre_cases))) for genre_cases in many
    ]
    names = ", ".join(f"{count} of {name}" for name, count in counted.items())
    bins = [f"| {share:.0%} | {mean:.2f} | {true:.2f} |" for share, mean, true in reliability(together, shipped)]
    weights = [f"| {name} | {_numbers(numbers)} |" for name, numbers in [("all", fitted), *folds.items()]]
    return "\n".join(
        [
            f"""
The chance that something in the scope answers the question, by words alone, over the questions for one fact that have
evidence ({names})
and questions without an answer: about what the other person said (LoCoMo's adversarial ones), BEAM's abstentions, the
same questions asked in another conversation, and asked with their evidence removed. Every genre counts the same,
{SHARE:.0%} of it answered. AUROC: 0.5 is chance. Low: confidence below {LOW}; for answered questions a false alarm.
Brier of a constant {SHARE}: {SHARE * (1 - SHARE):.3f}.

BEAM's abstentions name what was talked of and ask for a detail that was not said; words do not tell them from answered
questions. `lead` can be learned only from LoCoMo, where people have names: with the genre left out of the fit it is 0,
and questions about the other person are not recognised; fitted on its other conversations they are.

| | genre | answered: low | question without an answer: AUROC, low | Brier |
| --- | --- | ---: | --- | ---: |""".strip(),
            *rows,
            "\nReliability, as shipped, all genres together:\n",
            "| questions | mean confidence | with an answer |\n| ---: | ---: | ---: |",
            *bins,
            "\nWeights, fitted on all and with one genre left out; shipped: " + _numbers(shipped) + "\n",
            "| left out | bias, held, lead |\n| --- | ---: |",
            *(row.replace("| all |", "| none |") for row in weights),
        ]
    )


def _row(name: str, line: Line) -> str:
    others = "; ".join(f"{kind} {value:.2f}, {line.low[kind]:.0%}" for kind, value in line.auroc.items())
    return f"| {name} | {line.genre} | {line.low[ANSWERED]:.0%} | {others} | {line.brier:.3f} |"


def _numbers(weights: Array) -> str:
    return ", ".join(f"{weight:.2f}" for weight in weights)


def write_confidence(all_genres: Sequence[Genre]) -> str:
    """Writes the section to the document and returns its text."""
    text = section({genre.name: cases(genre) for genre in all_genres if genre.name in WITHOUT})
    put_section(DOCUMENT, "Confidence", text)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.evaluation.confidence", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the conversations")
    all_genres = genres(parser.parse_args().data)
    print(write_confidence(all_genres) if all_genres else "not evaluated: none of the files is in the folder")
    return 0


if __name__ == "__main__":
    sys.exit(main())
