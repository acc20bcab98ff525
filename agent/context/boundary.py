"""Where tier 2 begins, so that the prefix of the request stays the same for many turns (C4, prompt caching).

Dropping the oldest unit each time one too many arrives would change the prefix with every turn. So the start
of tier 2 moves in strides: when the middle overflows, it moves on until a quarter of tier 2's share is free
again. Where it stands follows from the messages alone, by walking through the thread as it grew; the start
never moves back, and the same messages always give the same start.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

STRIDE = 4  # a move frees a quarter of tier 2's share


class Weights(NamedTuple):
    """Per unit, in order: tokens unchanged, tokens condensed, number of messages."""

    full: Sequence[int]
    lean: Sequence[int]
    sizes: Sequence[int]


class Shares(NamedTuple):
    """Tokens: of all tiers shown here together, of tier 2, of tier 3; and tier 3's number of messages."""

    total: int
    middle: int
    recent: int
    recent_count: int
    flow: bool

    def middle_room(self, recent_used: int) -> int:
        """What tier 2 may take: its share, and with `flow` all that tier 3 leaves unused."""
        rest = self.total - recent_used
        return rest if self.flow else min(self.middle, rest)


def middle_start(weights: Weights, shares: Shares) -> int:
    """Index of the first unit of tier 2. Units too large for tier 2 weigh nothing: they are never in it."""
    full = list(accumulate(weights.full, initial=0))
    sizes = list(accumulate(weights.sizes, initial=0))
    lean = list(accumulate((w if w <= shares.middle else 0 for w in weights.lean), initial=0))
    start = recent = 0
    for end in range(1, len(full)):
        while recent < end and not _recent_fits(full, sizes, recent, end, shares):
            recent += 1
        if full[end] <= shares.total:
            continue
        room = shares.middle_room(full[end] - full[recent])
        if lean[recent] - lean[start] > room:
            target = room - shares.middle // STRIDE
            while start < recent and lean[recent] - lean[start] > target:
                start += 1
    return start


def _recent_fits(full: list[int], sizes: list[int], start: int, end: int, shares: Shares) -> bool:
    """Whether units start … end - 1 can be tier 3; the newest unit may have any number of messages."""
    few = sizes[end] - sizes[start] <= shares.recent_count or start == end - 1
    return few and full[end] - full[start] <= shares.recent
