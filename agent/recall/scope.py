"""The chunks of one scope in the arrays that ranking works on. Built once, asked many times."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from turnlog.projectors.chunking import day
from turnlog.projectors.terms import terms as to_terms

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

REACH = 3  # how many turns away context comes from


@dataclass(frozen=True, slots=True)
class ScopeIndex:
    """An inverted index and what else ranking needs, over n chunks in order of (thread, position).

    postings: text term → (chunk numbers, counts). dates: date term → chunk numbers. speakers: term of a
    speaker's name → chunk numbers. distance[d-1][i]: turns between chunks i and i + d, 0 across threads.
    vectors: (n, dimensions), rows of length 1, or 0 where `embedded` is False. size: chunks in all the scope.
    """

    count: int
    size: int
    lengths: Floats
    asks: Floats
    postings: Mapping[str, tuple[Ints, Floats]]
    dates: Mapping[str, Ints]
    speakers: Mapping[str, Ints]
    distance: tuple[Ints, ...]
    vectors: Floats | None
    embedded: NDArray[np.bool_]

    @classmethod
    def build(
        cls,
        *,
        texts: Sequence[str],
        terms: Sequence[Iterable[str]],
        speakers: Sequence[str],
        times: Sequence[datetime],
        threads: Sequence[str] | None = None,
        positions: Sequence[int] | None = None,
        vectors: NDArray[np.floating] | None = None,
        size: int | None = None,
    ) -> "ScopeIndex":
        """From parallel columns, sorted by (thread, seq, piece).

        terms: of the text, repeats kept (`Chunk.terms`). threads: None for one thread. positions: the row
        number of each chunk in its thread; needed only when chunks in between were not loaded. vectors:
        (n, dimensions), NaN where there is none. size: chunks in the scope when these are a selection of it.
        """
        count = len(texts)
        days = _group(day(time) for time in times)
        unit, embedded = _unit_rows(vectors, count)
        term_lists = [list(chunk) for chunk in terms]
        return cls(
            count=count,
            size=max(size or 0, count),
            lengths=np.array([len(chunk) for chunk in term_lists], dtype=np.float32),
            asks=np.array(["?" in text or "？" in text for text in texts], dtype=np.float32),
            postings=_postings(term_lists),
            dates=_by_term(days),
            speakers=_by_term(_group(speakers)),
            distance=_distances(count, threads, positions),
            vectors=unit,
            embedded=embedded,
        )


def _postings(term_lists: Sequence[Sequence[str]]) -> dict[str, tuple[Ints, Floats]]:
    where: defaultdict[str, list[int]] = defaultdict(list)
    often: defaultdict[str, list[int]] = defaultdict(list)
    for number, chunk in enumerate(term_lists):
        for term, times in Counter(chunk).items():
            where[term].append(number)
            often[term].append(times)
    return {
        term: (np.array(numbers, dtype=np.int32), np.array(often[term], dtype=np.float32))
        for term, numbers in where.items()
    }


def _group(labels: Iterable[str]) -> dict[str, list[int]]:
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        groups[label].append(number)
    return groups


def _by_term(groups: Mapping[str, Sequence[int]]) -> dict[str, Ints]:
    """Label → chunks becomes term of the label → chunks; labels are few, so each is split once."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for label, numbers in groups.items():
        for term in dict.fromkeys(to_terms(label)):
            found[term].extend(numbers)
    return {term: np.array(sorted(numbers), dtype=np.int32) for term, numbers in found.items()}


def _distances(count: int, threads: Sequence[str] | None, positions: Sequence[int] | None) -> tuple[Ints, ...]:
    place = np.arange(count) if positions is None else np.asarray(positions)
    numbers = {thread: number for number, thread in enumerate(dict.fromkeys(threads or ()))}
    thread_of = np.array([numbers[t] for t in threads]) if threads else np.zeros(count, dtype=np.int64)
    return tuple(
        ((place[d:] - place[:-d]) * (thread_of[d:] == thread_of[:-d])).astype(np.int32)
        for d in range(1, min(REACH, count - 1) + 1)
    )


def _unit_rows(vectors: NDArray[np.floating] | None, count: int) -> tuple[Floats | None, NDArray[np.bool_]]:
    if vectors is None or count == 0:
        return None, np.zeros(count, dtype=np.bool_)
    rows = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(rows, axis=1)
    embedded = np.isfinite(norms) & (norms > 0)
    unit = np.where(embedded[:, None], rows / np.where(embedded, norms, 1)[:, None], 0).astype(np.float32)
    return (unit if embedded.any() else None), embedded
