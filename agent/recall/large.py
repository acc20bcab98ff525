"""Implements recall in a large scope, with statistics from a sample and candidates from indexes.

A random sample provides the document frequencies and mean length for BM25, and the mean and covariance of the vectors.
It is kept until the scope has grown or shrunk by more than a tenth, or its share of chunks with vectors has changed by
more than 10 points. A query then reads a bounded number of rows: chunks with its rare words, chunks with pairs of its
common words, chunks with the nearest vectors, and the neighbours of the best candidates.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from turnlog.agent.recall.ranking import Query
from turnlog.agent.recall.scope import Chunks, ScopeIndex, ScopeStatistics
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.candidates import (
    SAMPLE,
    ChunkColumns,
    Probe,
    around,
    by_terms,
    by_vector,
    probe,
    sample,
)
from turnlog.projectors.models.chunks.lookup import Key, Scope
from turnlog.projectors.models.terms import terms as to_terms

# Numbers of candidates for up to ten turns; for more turns, proportionally more. They contain 92 % of the ten best of
# an exhaustive search, with or without vectors (LoCoMo).
BY_WORDS, BY_VECTOR = 25, 20
BY_WORDS_ALONE = 40
RARE_ROWS = 200  # rows of all single rare terms together
GROUP_ROWS = 50  # rows of a pair of common terms
COMMON_TERMS = 3  # number of common terms that are looked up in pairs
STALE = 0.1  # a sample is stale after a larger change of the scope's size or of its share of chunks with vectors


@dataclass(frozen=True, slots=True)
class ScopeSample:
    """The cached data of a large scope. names: terms of the names of its speakers."""

    probe: Probe
    statistics: ScopeStatistics
    names: frozenset[str]

    @property
    def chunks(self) -> int:
        return self.statistics.size

    @property
    def embedded(self) -> bool:
        return self.statistics.space is not None

    def is_current(self, now: Probe) -> bool:
        then = self.probe
        grown = abs(now.chunks - then.chunks) > STALE * then.chunks
        return not grown and abs(now.embedded - then.embedded) <= STALE


async def sample_scope(conn: Connection, scope: Scope, model: str | None, kept: ScopeSample | None) -> ScopeSample:
    """Returns `kept` unless it is stale; otherwise takes a new sample."""
    if kept is not None and kept.is_current(await probe(conn, scope, model, kept.probe.one_in)):
        return kept
    now = await probe(conn, scope, model)
    share = min(SAMPLE / max(now.chunks, 1), 1.0)
    columns = await sample(conn, scope, model, share)
    index = await asyncio.to_thread(_index, columns, None, range(len(columns.keys)), None)
    if now.enough > now.one_in:
        now = await probe(conn, scope, model, now.enough)
    return ScopeSample(now, index.of_size(round(index.count / share)), index.names)


async def candidate_chunks(
    conn: Connection,
    scope: Scope,
    parts: Sequence[Query],
    model: str | None,
    about: ScopeSample,
    k: int = 10,
) -> tuple[list[Key], ScopeIndex]:
    """Returns the candidates for the best k chunks of each part of a question, with their neighbours, as keys and an
    index for ranking."""
    hits: set[Key] = set()
    for part in parts:
        hits |= await _candidates(conn, scope, part, model, about, k)
    ordered = sorted(hits)
    columns = await around(conn, scope, ordered, model)
    words = frozenset(word for part in parts for word in to_terms(part.text))
    return columns.keys, _index(columns, words, columns.places(ordered), about.statistics)


async def _candidates(
    conn: Connection, scope: Scope, query: Query, model: str | None, about: ScopeSample, k: int
) -> set[Key]:
    many = max(1.0, k / 10)
    words = list(dict.fromkeys(to_terms(query.text)))
    wanted = [word for word in words if word not in about.names] or words
    space = about.statistics.space
    direction = None if query.vector is None or space is None else space.direction(query.vector)
    by_words = BY_WORDS_ALONE if direction is None else BY_WORDS
    matches = await by_terms(conn, scope, _groups(wanted, about.statistics))
    hits = set(_best(matches, wanted, about.statistics, round(many * by_words)))
    if direction is not None and model is not None:
        hits.update(await by_vector(conn, scope, direction.toward, model, round(many * BY_VECTOR)))
    return hits


def _groups(words: Sequence[str], statistics: ScopeStatistics) -> list[tuple[tuple[str, ...], int]]:
    """Returns groups of terms to look up, each with the number of rows to read: rare terms alone, common terms in
    pairs.

    Words that are not in the sample count as rare.
    """
    expected = {word: statistics.frequency.get(word, 1) for word in words}
    by_rarity = sorted(words, key=lambda word: expected[word])
    groups: list[tuple[tuple[str, ...], int]] = []
    left = RARE_ROWS
    while by_rarity and (expected[by_rarity[0]] <= left or not groups):
        rarest = by_rarity.pop(0)
        groups.append(((rarest,), RARE_ROWS if expected[rarest] <= left else GROUP_ROWS))
        left -= expected[rarest]
        if left <= 0:
            break
    rarest_alone = [group[0] for group, most in groups if most == GROUP_ROWS]
    pairs = combinations([*rarest_alone, *by_rarity[:COMMON_TERMS]], 2)
    return groups + [(pair, GROUP_ROWS) for pair in pairs]


def _best(
    candidates: Sequence[tuple[Key, list[str]]], words: Sequence[str], statistics: ScopeStatistics, most: int
) -> list[Key]:
    """Returns the keys of the chunks with the highest summed rarity of the words, normalised by length."""
    gain = {word: float(np.log1p(statistics.size / statistics.frequency.get(word, 1))) for word in words}
    score = {
        key: sum(map(gain.__getitem__, gain.keys() & terms)) / (1 + 0.2 * len(terms) / max(statistics.length, 1.0))
        for key, terms in candidates
    }
    return sorted(score, key=lambda key: (-score[key], key[1]))[:most]


def _index(
    columns: ChunkColumns, words: frozenset[str] | None, places: Sequence[int], statistics: ScopeStatistics | None
) -> ScopeIndex:
    """Returns an index of the chunks. words: the only terms to index; None means all."""
    chunks = Chunks.of(
        texts=columns.texts,
        terms=columns.terms,
        speakers=columns.speakers,
        times=columns.times,
        roles=columns.roles,
        vectors=columns.vectors,
        words=words,
    )
    return ScopeIndex.of_chunks(chunks, [key[0] for key in columns.keys], statistics, places)
