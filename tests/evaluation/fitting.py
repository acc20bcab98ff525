"""Fits the weights of recall to questions with known evidence: conditional logit, by Newton's method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from turnlog.agent.recall.ranking import Features, Query, Weights, features, feedback
from turnlog.agent.recall.scope import ScopeIndex

from .locomo import Array, Conversation

MULTI_HOP, COUNTS = 1, 3.0  # category and weight of multi-hop questions: the hardest, but only a seventh
RIDGE = 0.01
STEPS, ENOUGH = 20, 1e-4


@dataclass(frozen=True, slots=True)
class Case:
    """A question: the columns of the chunks (n, 8 or 9), the evidence as shares that add up to 1, and the question's
    weight."""

    columns: Array
    evidence: Array
    weight: float


def cases(conversation: Conversation, weights: Weights) -> list[Case]:
    """Returns the cases without feedback. weights: only the shape parameters are used (k1, b, before, after,
    answer)."""
    made = []
    for question in conversation.questions:
        scores = features(Query(question.text, question.vector), conversation.scope, weights)
        is_evidence = np.array([bool(question.evidence.intersection(c.source_ids)) for c in conversation.chunks])
        weight = COUNTS if question.category == MULTI_HOP else 1.0
        made.append(Case(_columns(scores, conversation.scope), is_evidence / is_evidence.sum(), weight))
    return made


def with_feedback(conversation: Conversation, known: Sequence[Case], first: Weights) -> list[Case]:
    """Returns the cases with feedback. first: the weights of the first ranking, whose best chunks provide the
    feedback."""
    weighed = np.array(
        [1, first.words, first.dense, first.near, first.speaker, -first.question, first.opens, first.detail]
    )
    columns = [
        np.column_stack([case.columns, feedback((case.columns @ weighed).astype(np.float32), conversation.scope)])
        for case in known
    ]
    return [replace(case, columns=case_columns) for case, case_columns in zip(known, columns, strict=True)]


def fit(learned_from: Sequence[Case], weights: Weights) -> Weights:
    """Returns the weights that maximise the likelihood that evidence is ranked first, in units of a BM25 point.

    The loss is convex, so Newton's method from zero, with steps halved if they overshoot, finds the global minimum.
    """
    estimate = np.zeros(learned_from[0].columns.shape[1])
    loss, slope, curve = _loss(learned_from, estimate)
    for _ in range(STEPS):
        step = np.linalg.solve(curve, slope)
        while (nearer := _loss(learned_from, estimate - step))[0] > loss and np.abs(step).max() > ENOUGH:
            step = step / 2
        estimate, (loss, slope, curve) = estimate - step, nearer
        if np.abs(step).max() <= ENOUGH:
            break
    words, dense, near, speaker, question, opens, detail, *rest = (float(w) for w in estimate[1:] / estimate[0])
    return replace(
        weights,
        words=words,
        dense=dense,
        near=near,
        speaker=speaker,
        question=-question,
        opens=opens,
        detail=detail,
        feedback=rest[0] if rest else 0.0,
    )


def _loss(learned_from: Sequence[Case], weights: Array) -> tuple[float, Array, Array]:
    """Returns the negative log likelihood of the evidence, with its first and second derivatives."""
    loss, slope, curve = RIDGE * float(weights @ weights), 2 * RIDGE * weights, 2 * RIDGE * np.eye(len(weights))
    for case in learned_from:
        score = case.columns @ weights
        chance = np.exp(score - score.max())
        loss -= case.weight * float(case.evidence @ (score - score.max() - np.log(chance.sum())))
        chance /= chance.sum()
        mean = chance @ case.columns
        slope = slope + case.weight * (mean - case.evidence @ case.columns)
        curve = curve + case.weight * ((case.columns * chance[:, None]).T @ case.columns - np.outer(mean, mean))
    return loss, slope, curve


def _columns(scores: Features, scope: ScopeIndex) -> Array:
    own = (scores.bm25, scores.context_words, scores.dense, scores.context_dense, scores.speaker)
    return np.stack([*own, scope.asks, scope.opens, scope.details], axis=1).astype(np.float64)
