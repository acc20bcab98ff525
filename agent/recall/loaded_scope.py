"""A scope's chunks with their index, as recall keeps them between searches."""

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.recall.scope import REACH, ScopeIndex
from turnlog.agent.recall.space import Space
from turnlog.projectors.models.chunks.candidates import Key
from turnlog.projectors.models.chunks.lookup import Columns, Stamp


@dataclass(frozen=True, slots=True)
class LoadedScope:
    """The index of a scope. firsts: sequence of the first turn of each chunk. columns: of a small scope. keys: of a
    large one."""

    index: ScopeIndex
    firsts: NDArray[np.int64]
    columns: Columns | None = None
    keys: tuple[Key, ...] = ()

    @property
    def names(self) -> Collection[str]:
        """Returns the terms of the speakers' names."""
        return self.index.speakers.keys()

    def allowed(self, before_seq: int | None, without: Collection[str]) -> NDArray[np.bool_] | None:
        """Returns which chunks are of turns before a sequence and of other threads than these; None for all."""
        if before_seq is None and not without:
            return None
        allowed = np.ones(self.index.count, dtype=np.bool_) if before_seq is None else self.firsts < before_seq
        if without:
            threads = [key[0] for key in self.keys] if self.columns is None else [c.thread for c in self.columns.chunks]
            allowed &= np.array([thread not in without for thread in threads], dtype=np.bool_)
        return allowed

    @property
    def rows(self) -> int:
        """Returns the memory it takes, in rows of vectors: its own, and the covariance with its inverse."""
        return self.index.count + (0 if self.index.vectors is None else 2 * self.index.vectors.shape[1])

    def serves(self, before_seq: int, now: Stamp) -> bool:
        """Returns whether a search for turns before a sequence finds the same here as in the whole scope of today.

        now: of the chunks before the sequence. Of later chunks only the next REACH count, as neighbours; more of them
        change nothing but how rare words are, a little.
        """
        if self.columns is None or np.count_nonzero(self.firsts >= before_seq) < REACH:
            return False
        old = self.firsts < before_seq
        turns = sum(bisect_left(chunk.seqs, before_seq) for chunk in self.columns.chunks)
        embedded = int(self.index.embedded[old].sum())
        last = int(self.firsts[old].max(initial=0))
        return now == Stamp(int(old.sum()), embedded, last, turns)


def indexed(columns: Columns, space: Space | None) -> LoadedScope:
    """Returns the index of all chunks of a scope. space: of a former index, used while it fits."""
    chunks = columns.chunks
    index = ScopeIndex.build(
        texts=[c.text for c in chunks],
        terms=[c.terms for c in chunks],
        speakers=[c.speaker for c in chunks],
        times=[c.created_at for c in chunks],
        roles=[c.role for c in chunks],
        threads=[c.thread for c in chunks],
        vectors=columns.vectors,
        space=space,
    )
    return LoadedScope(index, np.array([c.seqs[0] for c in chunks], dtype=np.int64), columns)
