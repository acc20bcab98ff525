"""The search index of one scope: arrays of its chunks on which ranking works. Built once, used for many queries."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.recall.space import Space
from turnlog.events.personal_data_caches import caches_words
from turnlog.projectors.models.chunks.chunking import day
from turnlog.projectors.models.terms import terms as to_terms

# Begins with a character class, because that is searched many times faster than alternatives.
_DETAIL = re.compile(r"[\dA-Z\"“”《》「」](?:(?<![A-Z])|(?<=[a-z,] [A-Z])(?=[a-z]))")


def asks(text: str) -> bool:
    return "?" in text or "？" in text


def tells_detail(text: str) -> bool:
    """Whether the text has a number, a name within a sentence, or a quotation."""
    return _DETAIL.search(text) is not None


Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

REACH = 3  # turns before and after that count as context
ASSISTANT = "assistant"  # the role of its turns, whatever its name
PAUSE = timedelta(hours=1)  # between two sessions
_JOINED = str.maketrans("", "", "'-,")


@dataclass(frozen=True, slots=True)
class ScopeStatistics:
    """Statistics of all chunks of a scope, exact or from a random sample.

    size: number of chunks. length: mean number of terms of what people say, for BM25: beside the mean of all, half of
    which are long answers of an assistant, these would hardly be long. Of all chunks where only an assistant speaks.
    frequency: term → number of chunks with it (a term that is missing counts as 1).
    """

    size: int
    length: float
    frequency: Mapping[str, int]
    space: Space | None

    @classmethod
    def of(
        cls,
        lengths: Floats,
        assistant: Floats,
        postings: Mapping[str, tuple[Ints, Floats]],
        dates: Mapping[str, Ints],
        unit: Floats | None,
        embedded: NDArray[np.bool_],
        space: Space | None = None,
    ) -> "ScopeStatistics":
        frequency = {term: len(numbers) for term, (numbers, _) in postings.items()}
        for term, numbers in dates.items():
            frequency[term] = len(np.union1d(numbers, postings[term][0])) if term in postings else len(numbers)
        if unit is None:
            space = None
        elif space is None or not space.fits(int(embedded.sum())):
            space = Space.of(unit[embedded])
        said = lengths if assistant.all() else lengths[assistant == 0]
        return cls(len(lengths), float(said.mean()) if len(said) else 1.0, frequency, space)

    def of_size(self, size: int) -> "ScopeStatistics":
        """Scaled to a scope of `size` chunks of which these are a random sample."""
        grown = size / max(self.size, 1)
        return ScopeStatistics(
            size, self.length, {term: round(n * grown) for term, n in self.frequency.items()}, self.space
        )


@dataclass(frozen=True, slots=True)
class ScopeIndex:
    """An inverted index and what else ranking needs, over n chunks in order of (thread, position).

    asks, details, assistant, monologue, people, opens: 1 for chunks that ask, that have a detail, that the assistant
    said, in whose thread one person speaks alone, in whose thread no assistant speaks, that come first after a pause.
    thread, session: its number, ascending. times: in seconds (Unix).
    postings: text term → (chunk numbers, counts). dates: date term → chunk numbers. speakers: term of a speaker's name
    → chunk numbers. distance[d-1][i]: turns between chunks i and i + d, 0 across threads. vectors: (n, dimensions),
    rows of length 1, or 0 where `embedded` is False. statistics: of the whole scope.
    """

    count: int
    statistics: ScopeStatistics
    lengths: Floats
    asks: Floats
    details: Floats
    assistant: Floats
    monologue: Floats
    people: Floats
    opens: Floats
    thread: Ints
    session: Ints
    times: NDArray[np.float64]
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
        roles: Sequence[str] | None = None,
        threads: Sequence[str] | None = None,
        positions: Sequence[int] | None = None,
        vectors: NDArray[np.floating] | None = None,
        statistics: ScopeStatistics | None = None,
        words: Collection[str] | None = None,
        space: Space | None = None,
    ) -> "ScopeIndex":
        """From parallel columns, sorted by (thread, seq, piece).

        terms: of the text, repeats kept (`Chunk.terms`). roles: None when the assistant has no name of its own.
        threads: None for one thread. positions: the row number of each chunk in its thread, the first one's 1; needed
        only when chunks in between were not loaded.
        vectors: (n, dimensions), NaN where there is none. statistics: of the scope, when these are a selection of it.
        words: the only terms that will be queried; all when None. space: of a former index, used while it fits.
        """
        count = len(texts)
        dates_of = [time.date() for time in times]
        names = {date: day(time) for date, time in dict(zip(dates_of, times, strict=True)).items()}
        days = _group(names[date] for date in dates_of)
        unit, embedded = _unit_rows(vectors, count)
        term_lists = [list(chunk) for chunk in terms]
        lengths = np.array([len(chunk) for chunk in term_lists], dtype=np.float32)
        thread_of, place = _places(count, threads, positions)
        opens, session = _sessions(times, thread_of, place)
        assistant = np.array([role == ASSISTANT for role in roles or speakers], dtype=np.float32)
        monologue, people = _kinds_of_talk(thread_of, speakers, assistant)
        if words is not None:
            wanted = frozenset(words)
            term_lists = [
                [] if wanted.isdisjoint(chunk) else [term for term in chunk if term in wanted] for chunk in term_lists
            ]
        postings, dates = _postings(term_lists), _by_term(days, words)
        return cls(
            count=count,
            statistics=statistics or ScopeStatistics.of(lengths, assistant, postings, dates, unit, embedded, space),
            lengths=lengths,
            asks=np.array([asks(text) for text in texts], dtype=np.float32),
            details=np.array([tells_detail(text) for text in texts], dtype=np.float32),
            assistant=assistant,
            monologue=monologue,
            people=people,
            opens=opens,
            thread=thread_of,
            session=session,
            times=np.array([time.timestamp() for time in times]),
            postings=postings,
            dates=dates,
            speakers=_by_term(_group(speakers), words),
            distance=_distances(thread_of, place),
            vectors=unit,
            embedded=embedded,
        )


def _kinds_of_talk(thread_of: Ints, speakers: Sequence[str], assistant: Floats) -> tuple[Floats, Floats]:
    """1 for chunks of threads with one speaker, and of threads without an assistant."""
    talking: defaultdict[int, set[str]] = defaultdict(set)
    for thread, speaker in zip(thread_of.tolist(), speakers, strict=True):
        talking[thread].add(speaker)
    alone = [len(talking[thread]) == 1 for thread in thread_of.tolist()]
    people = ~np.isin(thread_of, thread_of[assistant > 0])
    return np.array(alone, dtype=np.float32), people.astype(np.float32)


def _postings(term_lists: Sequence[Sequence[str]]) -> dict[str, tuple[Ints, Floats]]:
    where: defaultdict[str, list[int]] = defaultdict(list)
    often: defaultdict[str, list[int]] = defaultdict(list)
    for number, chunk in enumerate(term_lists):
        for term in chunk:
            numbers = where[term]
            if numbers and numbers[-1] == number:
                often[term][-1] += 1
            else:
                numbers.append(number)
                often[term].append(1)
    return {
        term: (np.array(numbers, dtype=np.int32), np.array(often[term], dtype=np.float32))
        for term, numbers in where.items()
    }


def _group(labels: Iterable[str]) -> dict[str, list[int]]:
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        groups[label].append(number)
    return groups


def _may_hold(labels: Iterable[str], words: Collection[str] | None) -> list[str]:
    """The labels that may contain one of the words as a term, so that only these are tokenised (stemming changes only
    the end of a word). The characters of _JOINED are removed within words: O'Brien is also the term "obrien"."""
    lowered = {label: label.lower().translate(_JOINED) for label in labels}
    if words is None:
        return list(lowered)
    together = "\n".join(lowered.values())
    stems = [stem for word in words if (stem := word[:-1] if len(word) > 2 else word) in together]
    return [label for label, low in lowered.items() if not low.isascii() or any(stem in low for stem in stems)]


@lru_cache(maxsize=50_000)
def _label_terms(label: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(to_terms(label)))


caches_words(_label_terms.cache_clear)


def _by_term(groups: Mapping[str, Sequence[int]], words: Collection[str] | None = None) -> dict[str, Ints]:
    """Maps the terms of each label to the chunks of the label. Labels repeat, so their terms are cached."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for label in _may_hold(groups, words):
        for term in _label_terms(label):
            found[term].extend(groups[label])
    return {term: np.array(sorted(numbers), dtype=np.int32) for term, numbers in found.items()}


def _places(count: int, threads: Sequence[str] | None, positions: Sequence[int] | None) -> tuple[Ints, Ints]:
    """The number of each chunk's thread, and the chunk's number in it."""
    numbers = {thread: number for number, thread in enumerate(dict.fromkeys(threads or ()))}
    thread_of = np.array([numbers[t] for t in threads] if threads else [0] * count, dtype=np.int32)
    if positions is not None:
        return thread_of, np.asarray(positions, dtype=np.int32)
    rows = np.arange(count, dtype=np.int32)
    starts = np.searchsorted(thread_of, thread_of)
    return thread_of, (rows - starts + 1).astype(np.int32)


def _distances(thread_of: Ints, place: Ints) -> tuple[Ints, ...]:
    return tuple(
        ((place[d:] - place[:-d]) * (thread_of[d:] == thread_of[:-d])).astype(np.int32)
        for d in range(1, min(REACH, len(place) - 1) + 1)
    )


def _sessions(times: Sequence[datetime], thread_of: Ints, place: Ints) -> tuple[Floats, Ints]:
    """1 for the first turn after a pause if another follows, and the session's number. Chunks whose neighbours were not
    loaded get 0."""
    seconds = np.array([time.timestamp() for time in times])
    follows = (np.diff(place, prepend=-1) == 1) & (np.diff(thread_of, prepend=-1) == 0)
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
