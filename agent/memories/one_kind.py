"""A user's memories of one kind, compared by their vectors: which say the same, which a model is to join (M6). Pure.

Seconds of arithmetic for many memories: for a thread of its own, in which a process's other roles go on.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.memories.compaction import SAME, Compactable, Group, same_ones
from turnlog.agent.memories.joints import RELATED, Joint, Scope, faint_ones, merges, summaries
from turnlog.agent.memories.near import Near, near_pairs
from turnlog.agent.memories.similarity import least_cosine
from turnlog.agent.models.protocol import CountTokens


@dataclass(frozen=True, slots=True)
class OneKind:
    """apart: sets of memories of which no two are made one. vectors: (n, dimensions)."""

    memories: Sequence[Compactable]
    vectors: NDArray[np.float16]
    model: str
    apart: Sequence[frozenset[UUID]]

    def groups(self, scope: Scope | None, count: CountTokens) -> tuple[list[Group], list[Joint]]:
        """Those that say the same, and of the others those to be merged; none of these without a scope."""
        if scope is None:
            return same_ones(self.memories, self._near(SAME), self.model, self.apart), []
        near = list(self._near(min(SAME, scope.similarity)))
        groups = same_ones(self.memories, near, self.model, self.apart)
        taken = {one.id for group in groups for one in (group.kept, *group.others)}
        left = [pair for pair in near if not {self.memories[n].id for n in (pair.first, pair.second)} & taken]
        return groups, merges(self.memories, left, self.model, scope, count, self.apart)

    def faint(self, scope: Scope, count: CountTokens, left_out: Collection[UUID]) -> list[Joint]:
        """Those to be summarised."""
        numbers = faint_ones(self.memories, scope, left_out)
        near = near_pairs(self.vectors[numbers], least_cosine(self.model, RELATED))
        return summaries([self.memories[n] for n in numbers], near, self.model, scope, count, self.apart)

    def _near(self, likeness: float) -> Iterator[Near]:
        """Every pair that may be as alike as that."""
        return near_pairs(self.vectors, least_cosine(self.model, likeness))
