"""Finds pairs of near vectors without comparing all pairs. Pure.

Each vector is assigned to its nearest centroid and compared with the vectors of its few nearest centroids (as an
inverted file index does). Instead of n² / 2 comparisons, this needs n² / PER_CENTROID with centroids, and a number of
comparisons with vectors that grows in proportion to n.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
BLOCK = 4_096  # vectors in memory as float32 at a time
PROBES = 4
BRUTE_FORCE_UP_TO = 2_000  # up to this number of vectors, all pairs are compared
PER_CENTROID = 400


@dataclass(frozen=True, slots=True)
class NearPair:
    """Two near vectors, named by their row indexes: first < second."""

    first: int
    second: int
    cosine: float


def near_pairs(vectors: NDArray[np.floating], least: float) -> Iterator[NearPair]:
    """Yields pairs with a cosine of at least `least`. vectors: (n, dimensions), not normalised, an array or a memory
    map.

    The result is exact for up to BRUTE_FORCE_UP_TO vectors; for more, a few pairs are missed.
    """
    if len(vectors) <= BRUTE_FORCE_UP_TO:
        yield from _within(vectors, np.arange(len(vectors)), np.arange(len(vectors)), least)
        return
    middle, centroids = _centroids(vectors)
    probes = np.concatenate([_probes(block, middle, centroids) for block in _blocks(vectors)])
    order = np.argsort(probes[:, 0], kind="stable")
    starts = np.searchsorted(probes[order, 0], np.arange(len(centroids) + 1))
    for number in range(len(centroids)):
        members = order[starts[number] : starts[number + 1]]
        probing = np.flatnonzero((probes == number).any(axis=1))
        yield from _within(vectors, members, probing, least)


def _within(
    vectors: NDArray[np.floating], members: NDArray[np.intp], probing: NDArray[np.intp], least: float
) -> Iterator[NearPair]:
    """Yields pairs of a centroid's member and a vector that probes the centroid, if the member has the lower index, so
    that a pair found at two centroids is not yielded twice."""
    if not len(members) or not len(probing):
        return
    right = _unit(vectors[members])
    for start in range(0, len(probing), BLOCK):
        part = probing[start : start + BLOCK]
        cosines = _unit(vectors[part]) @ right.T
        for row, column in np.argwhere(cosines >= least):
            first, second = int(members[column]), int(part[row])
            if first < second:
                yield NearPair(first, second, float(cosines[row, column]))


def _centroids(vectors: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Returns the mean of a sample, and evenly chosen vectors as centroids, relative to the mean because a model's
    vectors may all point in about the same direction."""
    n = len(vectors)
    sample = _unit(vectors[np.linspace(0, n - 1, min(n, BLOCK)).astype(np.intp)])
    middle = sample.mean(axis=0)
    chosen = np.linspace(0, n - 1, max(1, n // PER_CENTROID)).astype(np.intp)
    return middle, _unit(_unit(vectors[chosen]) - middle)


def _probes(block: Floats, middle: Floats, centroids: Floats) -> NDArray[np.int32]:
    """Returns the indexes of the nearest centroids of each vector, nearest first: an array of shape (n, PROBES)."""
    scores = _unit(block - middle) @ centroids.T
    count = min(PROBES, len(centroids))
    nearest = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    ranked = np.take_along_axis(nearest, np.argsort(-np.take_along_axis(scores, nearest, axis=1), axis=1), axis=1)
    return ranked.astype(np.int32)


def _blocks(vectors: NDArray[np.floating]) -> Iterator[Floats]:
    for start in range(0, len(vectors), BLOCK):
        yield _unit(vectors[start : start + BLOCK])


def _unit(vectors: NDArray[np.floating]) -> Floats:
    rows = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True).astype(np.float32)
    unit: Floats = rows / np.maximum(lengths, np.float32(1e-12))
    return unit
