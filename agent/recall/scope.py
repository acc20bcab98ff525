"""Implements the search index of a scope: arrays of its chunks, which the ranking uses. New chunks of the scope are
added to it."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.recall.space import Space
from turnlog.events.personal_data_caches import caches_words
from turnlog.projectors.models.chunks.chunking import day
from turnlog.projectors.models.terms import terms as to_terms

# The pattern begins with a character class, because that is many times faster than alternatives.
_DETAIL = re.compile(r"[\dA-Z\"“”《》「」](?:(?<![A-Z])|(?<=[a-z,] [A-Z])(?=[a-z]))")


def asks(text: str) -> bool:
    return "?" in text or "？" in text


def tells_detail(text: str) -> bool:
    """Returns whether the text contains a number, a name within a sentence, or a quotation."""
    return _DETAIL.search(text) is not None


Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

REACH = 3  # number of turns before and after a turn that count as context
ASSISTANT = "assistant"  # the role of the assistant's turns, regardless of its name
PAUSE = timedelta(hours=1)  # the shortest pause between two sessions


@dataclass(frozen=True, slots=True)
class Postings:
    """An inverted index as parallel arrays of term numbers and chunk numbers, in any order. A term that occurs several
    times in a chunk has several entries.

    numbers: the number of each term; shared by all indexes that grew from one index, so it may contain terms that are
    not in this one.
    """

    numbers: dict[str, int]
    terms: Ints
    chunks: Ints

    @classmethod
    def of(cls, numbers: dict[str, int], term_lists: Sequence[Sequence[str]]) -> Self:
        terms = [numbers.setdefault(term, len(numbers)) for chunk in term_lists for term in chunk]
        chunks = np.repeat(np.arange(len(term_lists), dtype=np.int32), [len(chunk) for chunk in term_lists])
        return cls(numbers, np.array(terms, dtype=np.int32), chunks)

    def with_term(self, term: str) -> Ints:
        """Returns the numbers of the chunks with a term, repeated for each occurrence."""
        chunks: Ints = self.chunks[self.terms == self.numbers.get(term, -1)]
        return chunks


@dataclass(frozen=True, slots=True)
class Chunks:
    """Columns of n chunks: the values of each chunk that the ranking needs.

    lengths: number of terms. asks, details, assistant: 1 for chunks that are questions, that contain a detail, and that
    the assistant said, respectively. times: Unix time in seconds. speaker: number of the speaker. said, dates,
    speakers: terms of the text, of the date and of the speaker's name. names: all terms of speakers' names. vectors:
    (n, dimensions), rows of length 1, or 0 where `embedded` is False; None if there are no vectors.
    """

    lengths: Floats
    asks: Floats
    details: Floats
    assistant: Floats
    times: NDArray[np.float64]
    speaker: Ints
    said: Postings
    dates: Postings
    speakers: Postings
    names: frozenset[str]
    vectors: Floats | None
    embedded: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        *,
        texts: Sequence[str],
        terms: Sequence[Iterable[str]],
        speakers: Sequence[str],
        times: Sequence[datetime],
        roles: Sequence[str] | None = None,
        vectors: NDArray[np.floating] | None = None,
        words: Collection[str] | None = None,
        numbers: dict[str, int] | None = None,
    ) -> "Chunks":
        """Returns Chunks made from parallel columns, which must be sorted by (thread, seq, piece).

        terms: terms of the texts with repetitions (`Chunk.terms`). roles: None if `speakers` contains the roles.
        vectors: (n, dimensions), NaN for chunks without a vector. words: the only terms that will be queried; None
        means all. numbers: the term numbers of the index to which the chunks will be added.
        """
        numbers = {} if numbers is None else numbers
        wanted = None if words is None else frozenset(words)
        term_lists, days = [list(chunk) for chunk in terms], [_label_terms(day(time)) for time in times]
        named = [_label_terms(speaker) for speaker in speakers]
        unit, embedded = _unit_rows(vectors, len(texts))

        def postings(lists: Sequence[Sequence[str]]) -> Postings:
            if wanted is not None:
                lists = [[] if wanted.isdisjoint(some) else [term for term in some if term in wanted] for some in lists]
            return Postings.of(numbers, lists)

        names = frozenset(term for speaker in dict.fromkeys(named) for term in speaker)
        return cls(
            lengths=np.array([len(chunk) for chunk in term_lists], dtype=np.float32),
            asks=np.array([asks(text) for text in texts], dtype=np.float32),
            details=np.array([tells_detail(text) for text in texts], dtype=np.float32),
            assistant=np.array([role == ASSISTANT for role in roles or speakers], dtype=np.float32),
            times=np.array([time.timestamp() for time in times], dtype=np.float64),
            speaker=np.array([numbers.setdefault(name, len(numbers)) for name in speakers], dtype=np.int32),
            said=postings(term_lists),
            dates=postings(days),
            speakers=postings(named),
            names=names if wanted is None else names & wanted,
            vectors=unit,
            embedded=embedded,
        )

    def space(self) -> Space | None:
        return None if self.vectors is None else Space.of(self.vectors[self.embedded])

    def joined(self, more: Sequence["Chunks"], order: NDArray[np.intp]) -> "Chunks":
        """Returns these chunks and `more` in a new order. order: numbers of the chunks to keep, counted through these
        chunks first and then `more`."""
        parts = [self, *more]
        starts = np.cumsum([0, *(len(part.lengths) for part in parts[:-1])])
        position = np.full(sum(len(part.lengths) for part in parts), -1, dtype=np.int32)
        position[order] = np.arange(len(order), dtype=np.int32)

        def join(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            if name == "names":
                return frozenset().union(*values)
            if name == "vectors":
                return _joined_vectors(values, np.split(position, starts[1:]), len(order))
            if not isinstance(values[0], Postings):
                return np.concatenate(values)[order]
            chunks = position[
                np.concatenate([postings.chunks + start for postings, start in zip(values, starts, strict=True)])
            ]
            there = chunks >= 0
            return Postings(
                self.said.numbers, np.concatenate([postings.terms for postings in values])[there], chunks[there]
            )

        return Chunks(**{field.name: join(field.name) for field in fields(Chunks)})


@dataclass(frozen=True, slots=True)
class ScopeStatistics:
    """Statistics of all chunks of a scope, exact or estimated from a random sample.

    size: number of chunks. length: mean number of terms in the chunks of people, for BM25, or in all chunks if only an
    assistant speaks. The mean of all chunks, half of which are long answers of an assistant, would be so high that
    these answers would not count as long. frequency: term → number of chunks with it, estimated from a sample (a
    missing term counts as 1). Empty if the index has all chunks and can count them.
    """

    size: int
    length: float
    frequency: Mapping[str, int]
    space: Space | None

    @classmethod
    def of(cls, chunks: Chunks, space: Space | None) -> "ScopeStatistics":
        lengths, assistant = chunks.lengths, chunks.assistant
        said = lengths if assistant.all() else lengths[assistant == 0]
        return cls(len(lengths), float(said.mean()) if len(said) else 1.0, {}, space)


@dataclass(frozen=True, slots=True)
class ScopeIndex(Chunks):
    """The index for ranking over n chunks, in order of (thread, position).

    monologue: 1 for chunks of threads in which one person speaks alone. people: 1 for chunks of threads in which no
    assistant speaks. opens: 1 for the first chunk after a pause if another chunk follows soon. thread, session:
    numbers, in ascending order. distance: distance[d-1][i] is the number of turns from chunk i to chunk i + d; 0 across
    threads. statistics: those of the complete scope.
    """

    count: int
    statistics: ScopeStatistics
    monologue: Floats
    people: Floats
    opens: Floats
    thread: Ints
    session: Ints
    distance: tuple[Ints, ...]

    @classmethod
    def of_chunks(
        cls,
        chunks: Chunks,
        threads: Sequence[str] | None = None,
        statistics: ScopeStatistics | None = None,
        positions: Sequence[int] | None = None,
    ) -> "ScopeIndex":
        """Returns the index of chunks.

        threads: the thread of each chunk; None if there is only one thread. statistics: those of the scope, if the
        chunks are a selection of it. positions: the number of each chunk in its thread, from 1; needed only if chunks
        in between are not loaded.
        """
        count = len(chunks.lengths)
        thread_of, position = _places(count, threads, positions)
        opens, session = _sessions(chunks.times, thread_of, position)
        monologue, people = _kinds_of_talk(thread_of, chunks.speaker, chunks.assistant)
        return cls(
            **{field.name: getattr(chunks, field.name) for field in fields(Chunks)},
            count=count,
            statistics=statistics or ScopeStatistics.of(chunks, chunks.space()),
            monologue=monologue,
            people=people,
            opens=opens,
            thread=thread_of,
            session=session,
            distance=_distances(thread_of, position),
        )

    def frequency(self, word: str) -> int:
        """Returns the number of chunks in the scope that contain a word in the text or the date; at least 1."""
        if self.statistics.frequency:
            return self.statistics.frequency.get(word, 1)
        return max(int(np.count_nonzero(self.with_word(word))), 1)

    def with_word(self, word: str) -> NDArray[np.bool_]:
        """Returns a mask (n,) of the chunks that contain the word in the text or the date."""
        has = np.zeros(self.count, dtype=np.bool_)
        has[self.said.with_term(word)] = has[self.dates.with_term(word)] = True
        return has

    def of_size(self, size: int) -> ScopeStatistics:
        """Returns the statistics of a scope with `size` chunks, of which these chunks are a random sample."""
        both, count = (self.said, self.dates), max(self.count, 1)
        terms, chunks = (
            np.concatenate(parts)
            for parts in zip(*((postings.terms, postings.chunks) for postings in both), strict=True)
        )
        often = np.bincount(np.unique(terms.astype(np.int64) * count + chunks) // count)
        grown = size / count
        frequency = {
            term: round(often[n] * grown) for term, n in self.said.numbers.items() if n < len(often) and often[n]
        }
        return ScopeStatistics(size, self.statistics.length, frequency, self.statistics.space)


def _kinds_of_talk(thread_of: Ints, speaker: Ints, assistant: Floats) -> tuple[Floats, Floats]:
    """Returns two arrays: 1 for chunks of threads with one speaker, and 1 for chunks of threads without an
    assistant."""
    speaks = np.unique(thread_of.astype(np.int64) << 32 | speaker)
    alone = np.bincount(speaks >> 32)[thread_of] == 1
    people = ~np.isin(thread_of, thread_of[assistant > 0])
    return alone.astype(np.float32), people.astype(np.float32)


@lru_cache(maxsize=50_000)
def _label_terms(label: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(to_terms(label)))


caches_words(_label_terms.cache_clear)


def _places(count: int, threads: Sequence[str] | None, positions: Sequence[int] | None) -> tuple[Ints, Ints]:
    """Returns, for each chunk, the number of its thread and its position in the thread."""
    numbers = {thread: number for number, thread in enumerate(dict.fromkeys(threads or ()))}
    thread_of = np.array([numbers[t] for t in threads] if threads else [0] * count, dtype=np.int32)
    if positions is not None:
        return thread_of, np.asarray(positions, dtype=np.int32)
    rows = np.arange(count, dtype=np.int32)
    starts = np.searchsorted(thread_of, thread_of)
    return thread_of, (rows - starts + 1).astype(np.int32)


def _distances(thread_of: Ints, position: Ints) -> tuple[Ints, ...]:
    return tuple(
        ((position[d:] - position[:-d]) * (thread_of[d:] == thread_of[:-d])).astype(np.int32)
        for d in range(1, min(REACH, len(position) - 1) + 1)
    )


def _sessions(seconds: NDArray[np.float64], thread_of: Ints, position: Ints) -> tuple[Floats, Ints]:
    """Returns two arrays: 1 for the first turn after a pause if another turn follows soon, and the number of the
    session. Chunks whose neighbours are not loaded get 0 in the first."""
    follows = (np.diff(position, prepend=-1) == 1) & (np.diff(thread_of, prepend=-1) == 0)
    paused = np.diff(seconds, prepend=0) >= PAUSE.total_seconds()
    opens = follows & paused & np.append(follows & ~paused, False)[1:]
    return opens.astype(np.float32), np.cumsum(paused | ~follows).astype(np.int32)


def _unit_rows(vectors: NDArray[np.floating] | None, count: int) -> tuple[Floats | None, NDArray[np.bool_]]:
    if vectors is None or count == 0:
        return None, np.zeros(count, dtype=np.bool_)
    rows = np.asarray(vectors, dtype=np.float32)
    norms = np.sqrt(np.vecdot(rows, rows))
    embedded = np.isfinite(norms) & (norms > 0)
    if not embedded.any():
        return None, embedded
    norms[~embedded] = 1
    unit = rows / norms[:, None]
    unit[~embedded] = 0
    return unit, embedded


def _joined_vectors(parts: Sequence[Floats | None], positions: Sequence[Ints], count: int) -> Floats | None:
    """Returns `count` rows: the rows of each part at these positions, and 0 for parts without vectors. Rows
    with the position -1 are left out."""
    width = next((part.shape[1] for part in parts if part is not None), None)
    if width is None:
        return None
    rows = np.zeros((count, width), dtype=np.float32)
    for part, position in zip(parts, positions, strict=True):
        if part is not None:
            there = position >= 0
            rows[position[there]] = part if there.all() else part[there]
    return rows
