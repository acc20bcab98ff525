"""Measures which share of a question's evidence is among the first k turns, without a language model or a server."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from turnlog.agent.recall.ranking import Weights, rank_parts

from .fitting import cases, fit, with_feedback
from .floors import DEPTH, Ranker, floors
from .locomo import CATEGORIES, Conversation, Question

KS = (5, 10, 20)
PARTS = ("dense", "near", "words", "speaker", "question", "opens", "detail", "feedback", "session")


@dataclass(frozen=True, slots=True)
class Line:
    """Results in percent. recall, any: the values at each of KS. categories, conversations: recall@10 by name."""

    name: str
    recall: dict[int, float]
    any: dict[int, float]
    all_at_10: float
    categories: dict[str, float]
    conversations: dict[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    conversation: str
    category: int
    share: dict[int, float]


def shipped(weights: Weights | None = None, vectors: bool = True, depth: int = DEPTH) -> Ranker:
    """Returns a ranker that works like recall: it ranks by each part of a question and alternates their best
    results."""
    used = weights or Weights()

    def ranked(c: Conversation, q: Question) -> list[int]:
        queries = q.parts if vectors else [replace(part, vector=None) for part in q.parts]
        rankings = [[scored.chunk for scored in best] for best in rank_parts(queries, c.scope, depth, used)]
        return [chunk for best in zip_longest(*rankings) for chunk in best if chunk is not None]

    return ranked


def report(conversations: Sequence[Conversation]) -> tuple[list[Line], list[Weights]]:
    """Returns lines for the floors, for turnlog with weights fitted without the tested conversation, for turnlog as
    shipped and for turnlog without each part; and the weights of each fold."""
    lines = [line(name, conversations, ranker) for name, ranker in floors(conversations).items()]
    outcomes, folds = leave_one_out(conversations)
    lines.append(summed("turnlog, leave one out", outcomes))
    lines.append(line("turnlog, as shipped", conversations, shipped()))
    lines.append(line("  words alone", conversations, shipped(vectors=False)))
    for part in PARTS:
        lines.append(line(f"  without `{part}`", conversations, shipped(replace(Weights(), **{part: 0.0}))))
    return lines, folds


def leave_one_out(conversations: Sequence[Conversation]) -> tuple[list[Outcome], list[Weights]]:
    shapes = Weights()
    known = [cases(conversation, shapes) for conversation in conversations]
    outcomes, folds = [], []
    for left, conversation in enumerate(conversations):
        others = [
            (conversation, own_cases)
            for at, (conversation, own_cases) in enumerate(zip(conversations, known, strict=True))
            if at != left
        ]
        first = fit([case for _, own_cases in others for case in own_cases], shapes)
        weights = fit(
            [case for conversation, own_cases in others for case in with_feedback(conversation, own_cases, first)],
            shapes,
        )
        outcomes += outcomes_of(conversation, shipped(weights))
        folds.append(weights)
    return outcomes, folds


def line(name: str, conversations: Sequence[Conversation], ranker: Ranker) -> Line:
    return summed(name, [outcome for conversation in conversations for outcome in outcomes_of(conversation, ranker)])


def summed(name: str, outcomes: Sequence[Outcome]) -> Line:
    return Line(
        name,
        recall={k: _percent([outcome.share[k] for outcome in outcomes]) for k in KS},
        any={k: _percent([float(outcome.share[k] > 0) for outcome in outcomes]) for k in KS},
        all_at_10=_percent([float(outcome.share[10] == 1) for outcome in outcomes]),
        categories={
            name: _percent([outcome.share[10] for outcome in outcomes if outcome.category == number])
            for number, name in CATEGORIES.items()
        },
        conversations={
            name: _percent([outcome.share[10] for outcome in outcomes if outcome.conversation == name])
            for name in dict.fromkeys(outcome.conversation for outcome in outcomes)
        },
    )


def outcomes_of(conversation: Conversation, ranker: Ranker) -> list[Outcome]:
    made = []
    for question in conversation.questions:
        order = [s for i in ranker(conversation, question) for s in conversation.chunks[i].source_ids]
        ranked = list(dict.fromkeys(order))
        count = len(question.evidence)
        share = {k: len(question.evidence.intersection(ranked[:k])) / count for k in KS}
        made.append(Outcome(conversation.name, question.category, share))
    return made


def _percent(values: Sequence[float]) -> float:
    return round(100 * float(np.mean(values)), 1) if values else float("nan")
