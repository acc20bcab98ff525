"""Which of many vectors are near each other, without comparing all pairs (M6). Pure.

Every vector belongs to the nearest of some centroids, and is compared with those of a few of the centroids nearest to
it: near vectors have nearly the same ones. Work grows with n·√n and not with n².
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
AT_ONCE = 4_096  # vectors that are in memory as float32 at a time
PROBES = 4
FEW = 2_000  # compared all with all
PER_CENTROID = 400


@dataclass(frozen=True, slots=True)
class Near:
    """first < second: numbers of vectors."""

    first: int
    second: int
    cosine: float


def near_pairs(vectors: NDArray[np.floating], least: float) -> Iterator[Near]:
    """Pairs with a cosine of at least `least`. vectors: (n, dimensions), of any length, as an array or a memory map.

    Up to FEW vectors all pairs are found; of more, nearly all.
    """
    if len(vectors) <= FEW:
        yield from _within(vectors, np.arange(len(vectors)), np.arange(len(vectors)), least)
        return
    middle, centroids = _centroids(vectors)
    probes = np.concatenate([_probes(block, middle, centroids) for block in _blocks(vectors)])
    order = np.argsort(probes[:, 0], kind="stable")
    starts = np.searchsorted(probes[order, 0], np.arange(len(centroids) + 1))
    for number in range(len(centroids)):
        members = order[starts[number] : starts[number + 1]]
        asking = np.flatnonzero((probes == number).any(axis=1))
        yield from _within(vectors, members, asking, least)


def _within(
    vectors: NDArray[np.floating], members: NDArray[np.intp], asking: NDArray[np.intp], least: float
) -> Iterator[Near]:
    """Pairs of a member with one that asks; a pair that two centroids know is told once, by its first vector's own."""
    if not len(members) or not len(asking):
        return
    right = _unit(vectors[members])
    for start in range(0, len(asking), AT_ONCE):
        part = asking[start : start + AT_ONCE]
        cosines = _unit(vectors[part]) @ right.T
        for row, column in np.argwhere(cosines >= least):
            first, second = int(members[column]), int(part[row])
            if first < second:
                yield Near(first, second, float(cosines[row, column]))


def _centroids(vectors: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """The mean of a sample, and evenly spread vectors relative to it: a model's vectors may all point one way."""
    n = len(vectors)
    sample = _unit(vectors[np.linspace(0, n - 1, min(n, AT_ONCE)).astype(np.intp)])
    middle = sample.mean(axis=0)
    chosen = np.linspace(0, n - 1, max(1, n // PER_CENTROID)).astype(np.intp)
    return middle, _unit(_unit(vectors[chosen]) - middle)


def _probes(block: Floats, middle: Floats, centroids: Floats) -> NDArray[np.int32]:
    """(n, PROBES) numbers of the nearest centroids, the nearest first."""
    scores = _unit(block - middle) @ centroids.T
    count = min(PROBES, len(centroids))
    found = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    ranked = np.take_along_axis(found, np.argsort(-np.take_along_axis(scores, found, axis=1), axis=1), axis=1)
    return ranked.astype(np.int32)


def _blocks(vectors: NDArray[np.floating]) -> Iterator[Floats]:
    for start in range(0, len(vectors), AT_ONCE):
        yield _unit(vectors[start : start + AT_ONCE])


def _unit(vectors: NDArray[np.floating]) -> Floats:
    rows = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True).astype(np.float32)
    unit: Floats = rows / np.maximum(lengths, np.float32(1e-12))
    return unit
