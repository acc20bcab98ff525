"""Recall in a large scope: what it is like, from a sample; the likely chunks of it, from indexes.

BM25's document frequencies, its mean length and the space of the vectors come from a fair sample, which is kept
until the scope has grown or shrunk by a tenth. Then a query reads a bounded number of rows: the chunks with its
rare words, those with pairs of its common ones, those whose vectors are nearest, and the turns around the best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.recall.scope import ScopeIndex, Whole
from turnlog.projectors.chunk_candidates import SAMPLE, Key, Part, Probe, around, by_terms, by_vector, probe, sample
from turnlog.projectors.chunk_lookup import Scope
from turnlog.projectors.terms import terms as to_terms
from turnlog.projectors.writer import Connection

# For up to ten turns; for more in proportion. Of the ten best by an exact look 92 % are then found, with or without
# vectors (LoCoMo).
BY_WORDS, BY_VECTOR = 25, 20
BY_WORDS_ALONE = 40
RARE_ROWS = 200  # in all, of terms taken alone
GROUP_ROWS = 50  # of a pair of common terms
COMMON_TERMS = 3  # so many of them are paired
STALE = 0.1


@dataclass(frozen=True, slots=True)
class Sampled:
    """What is kept of a large scope. names: terms of its speakers' names."""

    probe: Probe
    whole: Whole
    names: frozenset[str]

    @property
    def chunks(self) -> int:
        return self.whole.size

    @property
    def embedded(self) -> bool:
        return self.whole.space is not None

    def serves(self, now: Probe) -> bool:
        then = self.probe
        grown = abs(now.chunks - then.chunks) > STALE * then.chunks
        return not grown and abs(now.embedded - then.embedded) <= STALE


async def sampled(conn: Connection, scope: Scope, model: str | None, kept: Sampled | None) -> Sampled:
    """`kept` while it serves, else of a new sample."""
    if kept is not None and kept.serves(await probe(conn, scope, model, kept.probe.one_in)):
        return kept
    now = await probe(conn, scope, model)
    share = min(SAMPLE / max(now.chunks, 1), 1.0)
    part = await sample(conn, scope, model, share)
    index = _index(part, None, range(len(part.keys)), None)
    if now.enough > now.one_in:
        now = await probe(conn, scope, model, now.enough)
    return Sampled(now, index.whole.of_size(round(index.count / share)), frozenset(index.speakers))


async def likely_part(
    conn: Connection,
    scope: Scope,
    query: str,
    vector: NDArray[np.floating] | None,
    model: str | None,
    about: Sampled,
    k: int = 10,
) -> tuple[list[Key], ScopeIndex]:
    """The candidates for the best k with what stands around them, ready to rank."""
    many = max(1.0, k / 10)
    words = list(dict.fromkeys(to_terms(query)))
    wanted = [word for word in words if word not in about.names] or words
    direction = None if vector is None or about.whole.space is None else about.whole.space.direction(vector)
    by_words = BY_WORDS_ALONE if direction is None else BY_WORDS
    said = await by_terms(conn, scope, _groups(wanted, about.whole))
    hits = set(_best(said, wanted, about.whole, round(many * by_words)))
    if direction is not None and model is not None:
        hits.update(await by_vector(conn, scope, direction.toward, model, round(many * BY_VECTOR)))
    ordered = sorted(hits)
    part = await around(conn, scope, ordered, model)
    return part.keys, _index(part, frozenset(words), part.places(ordered), about.whole)


def _groups(words: Sequence[str], whole: Whole) -> list[tuple[tuple[str, ...], int]]:
    """Terms whose chunks are read, each group at most so many rows: the rare ones alone, common ones in pairs.

    A word that the sample does not have is rare.
    """
    expected = {word: whole.frequency.get(word, 1) for word in words}
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


def _best(found: Sequence[tuple[Key, list[str]]], words: Sequence[str], whole: Whole, most: int) -> list[Key]:
    """The chunks with most of the words that are rare in the scope, the short ones first."""
    gain = {word: float(np.log1p(whole.size / whole.frequency.get(word, 1))) for word in words}
    score = {
        key: sum(map(gain.__getitem__, gain.keys() & terms)) / (1 + 0.2 * len(terms) / max(whole.length, 1.0))
        for key, terms in found
    }
    return sorted(score, key=lambda key: (-score[key], key[1]))[:most]


def _index(part: Part, words: frozenset[str] | None, places: Sequence[int], whole: Whole | None) -> ScopeIndex:
    """words: only their postings are made; None makes all."""
    return ScopeIndex.build(
        texts=part.texts,
        terms=part.terms,
        speakers=part.speakers,
        times=part.times,
        threads=[key[0] for key in part.keys],
        positions=places,
        vectors=part.vectors,
        whole=whole,
        words=words,
    )
