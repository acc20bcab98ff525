"""Loads the chunks of a scope with their index, which recall keeps between searches."""

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.recall.scope import REACH, Chunks, ScopeIndex, ScopeStatistics
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.candidate_search import decode_vectors
from turnlog.projectors.models.chunks.lookup import (
    AT_ONCE,
    END,
    ChunkRow,
    Found,
    Key,
    KnownChunks,
    Scope,
    Stamp,
    chunks_beyond,
)


@dataclass(frozen=True, slots=True)
class LoadedScope:
    """The index of a scope and the keys of its chunks. For a small scope, it also has the chunks and the array `counts`
    with one row for each chunk: sequence of its first turn, sequence of its last turn, number of turns, 1 if it has a
    vector."""

    index: ScopeIndex
    keys: Sequence[Key]
    chunks: Sequence[Found] | None = None
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 4), dtype=np.int64))

    @property
    def names(self) -> Collection[str]:
        """Returns the terms of the speakers' names."""
        return self.index.names

    @property
    def rows(self) -> int:
        """Returns the memory use in rows of vectors, including the covariance and its inverse."""
        return self.index.count + (0 if self.index.vectors is None else 2 * self.index.vectors.shape[1])

    def stamp(self, until: int = END) -> Stamp:
        """Returns the counts of the chunks whose first turn is before the sequence `until`, to compare with the
        database."""
        counts = self.counts[self.counts[:, 0] < until]
        later = np.flatnonzero((self.counts[:, 0] < until) & (self.counts[:, 1] >= until)).tolist()
        without = sum(len(seqs) - bisect_left(seqs, until) for seqs in ((self.chunks or ())[n].seqs for n in later))
        _, _, turns, embedded = counts.sum(axis=0).tolist()
        return Stamp(len(counts), embedded, int(counts[:, 0].max(initial=0)), turns - without)

    def known(self, model: str | None = None, until: int = END) -> KnownChunks:
        """Returns a description of the chunks that are loaded. model: None if vectors are not needed."""
        starts = np.flatnonzero(np.diff(self.index.thread, prepend=-1)).tolist()
        last = np.maximum.reduceat(self.counts[:, 1], starts).tolist() if self.keys else ()
        through = {self.keys[start][0]: seq for start, seq in zip(starts, last, strict=True)}
        unembedded = np.flatnonzero(self.counts[:, 3] == 0).tolist() if model else ()
        return KnownChunks(through, [self.keys[number][3] for number in unembedded], self.stamp(until), until)

    def until(self, before_seq: int | None) -> int:
        """Returns the sequence up to which the index must be current to search for turns before `before_seq`. The first
        REACH chunks from `before_seq` on are needed as neighbours; still newer chunks would only slightly change the
        rarity of words."""
        later = np.sort(self.counts[:, 0][self.counts[:, 0] >= (END if before_seq is None else before_seq)])
        return int(later[REACH - 1]) + 1 if len(later) >= REACH else END

    def allowed(self, before_seq: int | None, without: Collection[str]) -> NDArray[np.bool_] | None:
        """Returns a mask of the chunks that begin before a sequence and are not in the threads `without`; None if all
        chunks are allowed."""
        if before_seq is None and not without:
            return None
        before = END if before_seq is None else before_seq
        return np.array([seq < before and thread not in without for thread, seq, _, _ in self.keys], dtype=np.bool_)


async def load_scope(
    conn: Connection, scope: Scope, model: str | None, former: LoadedScope | None, before_seq: int | None = None
) -> LoadedScope | None:
    """Returns all chunks of a scope; None if the scope is large. Only new chunks are read and indexed, unless some
    loaded chunks no longer exist. before_seq: a search in a thread for turns before this sequence does not need newer
    chunks."""
    loaded = former or _nothing()
    known = loaded.known(model, END if scope.thread is None else loaded.until(before_seq))
    stamp, new = await chunks_beyond(conn, scope, model, known)
    if stamp != known.stamp and not stamp.large:
        loaded = await _grown(loaded, new)
        if stamp != loaded.stamp(known.until):
            loaded = _nothing()
            stamp, new = await chunks_beyond(conn, scope, model, loaded.known(model))
            loaded = loaded if stamp.large else await _grown(loaded, new)
    return None if stamp.large else loaded


def _nothing() -> LoadedScope:
    return LoadedScope(ScopeIndex.of_chunks(Chunks.of(texts=(), terms=(), speakers=(), times=())), (), ())


async def _grown(former: LoadedScope, new: Sequence[ChunkRow]) -> LoadedScope:
    """Returns the scope with the new chunks added; they replace chunks with the same keys."""
    new, index, count = sorted(new, key=attrgetter("key")), former.index, len(former.keys)
    parts = [await _facts(new[at : at + AT_ONCE], index.said.numbers) for at in range(0, len(new), AT_ONCE)]
    keys, chunks, order = list(former.keys), list(former.chunks or ()), list(range(count))
    for number, row in enumerate(new, count):
        at = bisect_left(keys, row.key)
        until = at + (keys[at : at + 1] == [row.key])
        keys[at:until], chunks[at:until], order[at:until] = [row.key], [row.chunk], [number]
    joined = index.joined(parts, np.array(order, dtype=np.intp))
    space = index.statistics.space
    if space is None or not space.fits(int(joined.embedded.sum())):
        space = await asyncio.to_thread(joined.space)
    grown = ScopeIndex.of_chunks(joined, [key[0] for key in keys], ScopeStatistics.of(joined, space))
    counts = np.array(
        [(row.key[1], row.chunk.seqs[-1], len(row.chunk.seqs), row.vector is not None) for row in new], dtype=np.int64
    )
    return LoadedScope(grown, keys, chunks, np.concatenate([former.counts, counts.reshape(-1, 4)])[order])


async def _facts(rows: Sequence[ChunkRow], numbers: dict[str, int]) -> Chunks:
    await asyncio.sleep(0)  # lets other tasks run
    return Chunks.of(
        texts=[row.chunk.text for row in rows],
        terms=[row.chunk.terms for row in rows],
        speakers=[row.chunk.speaker for row in rows],
        times=[row.chunk.created_at for row in rows],
        roles=[row.chunk.role for row in rows],
        vectors=decode_vectors([row.vector for row in rows]),
        numbers=numbers,
    )
