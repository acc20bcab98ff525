"""Selects the units of each tier if not everything fits. Works on indexes of units."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

STRIDE = 4  # when tier 2 is full, its start moves until a quarter of its share is free


class Weights(NamedTuple):
    """The weights of the units, in order. full: tokens unchanged. lean: tokens condensed. sizes: number of messages."""

    full: Sequence[int]
    lean: Sequence[int]
    sizes: Sequence[int]


class Shares(NamedTuple):
    """The limits of the tiers. total: tokens of all. middle: tokens of tier 2. recent: tokens of tier 3. recent_count:
    messages in tier 3. flow: tier 2 may use tokens that tier 3 leaves."""

    total: int
    middle: int
    recent: int
    recent_count: int
    flow: bool

    def middle_room(self, recent_used: int) -> int:
        """Returns the number of tokens for tier 2: its share and, with `flow`, the tokens that tier 3 leaves unused."""
        rest = self.total - recent_used
        return rest if self.flow else min(self.middle, rest)


def middle_start(weights: Weights, shares: Shares) -> int:
    """Returns the index of the first unit of tier 2. Units that are too large for tier 2 are never in it, so they count
    as zero."""
    full = list(accumulate(weights.full, initial=0))
    sizes = list(accumulate(weights.sizes, initial=0))
    lean = list(accumulate((w if w <= shares.middle else 0 for w in weights.lean), initial=0))
    start = recent = 0
    total, few, share = shares.total, shares.recent_count, shares.recent
    for end in range(bisect_right(full, total), len(full)):
        # Tier 3 is limited in tokens and in messages, but its newest unit may have any number of messages.
        while recent < end and (
            full[end] - full[recent] > share or (sizes[end] - sizes[recent] > few and recent != end - 1)
        ):
            recent += 1
        room = shares.middle_room(full[end] - full[recent])
        if lean[recent] - lean[start] > room:
            target = room - shares.middle // STRIDE
            while start < recent and lean[recent] - lean[start] > target:
                start += 1
    return start


OVER_BUDGET = "older than what fits into the budget"
TOO_LARGE = "larger than tier 2's whole share"
RELEVANT_PERCENT = 75  # the maximum part of tier 2, in percent, for units that are relevant to the question


class Pin(NamedTuple):
    """The unit with the latest user message, which is always sent. tokens: its tokens as it is sent."""

    at: int
    tokens: int


class Selection(NamedTuple):
    """The indexes of the units in each tier, in order. dropped: index → reason, for the other units."""

    middle: tuple[int, ...]
    recent: tuple[int, ...]
    dropped: dict[int, str]


def select(weights: Weights, shares: Shares, pin: Pin | None, relevant: Sequence[int] = ()) -> Selection:
    """Fills tier 3 from the newest unit backwards, then tier 2 backwards from there; the pin is in the tier of its
    position.

    relevant: units that get into tier 2 first, best first, regardless of their position in the thread.

    The total is at most `shares.total` if the pin alone does not exceed it.
    """
    recent = _recent(weights, shares, pin)
    first = recent[0] if recent else len(weights.full)
    used = sum(pin.tokens if pin and i == pin.at else weights.full[i] for i in recent)
    pinned = pin if pin and pin.at < first else None
    room = min(shares.middle_room(used), shares.total - used) - (pinned.tokens if pinned else 0)
    older = [i for i in relevant if i < first and not (pinned and i == pinned.at)]
    kept = _kept(weights, older, room * RELEVANT_PERCENT // 100, shares.middle)
    room -= sum(weights.lean[i] for i in kept)
    start = middle_start(weights, shares)
    middle, dropped = _middle(weights, [i for i in range(start, first) if i not in kept], room, shares.middle, pinned)
    middle += kept
    if pinned and pinned.at < start:
        middle.append(pinned.at)
    shown = {*middle, *recent}
    dropped |= {i: OVER_BUDGET for i in range(start) if i not in shown}
    return Selection(tuple(sorted(middle)), recent, dict(sorted(dropped.items())))


def _kept(weights: Weights, relevant: Sequence[int], room: int, share: int) -> Collection[int]:
    """Returns the relevant units that fit, best first; a unit that does not fit is skipped."""
    kept: dict[int, None] = {}
    for index in relevant:
        tokens = weights.lean[index]
        if index not in kept and tokens <= min(room, share):
            kept[index] = None
            room -= tokens
    return kept.keys()


def _recent(weights: Weights, shares: Shares, pin: Pin | None) -> tuple[int, ...]:
    """Returns the newest units: at most `recent_count` messages and the share of tier 3.

    The newest unit may have more messages, because it is never split. The pin may use tokens of the other tiers; newer
    units then get the tokens that the pin leaves.
    """
    newest = len(weights.full) - 1
    limit = min(shares.recent, shares.total - pin.tokens) if pin else shares.recent
    chosen: list[int] = []
    count = used = 0
    for index in range(newest, -1, -1):
        is_pin = pin is not None and index == pin.at
        tokens = pin.tokens if pin and is_pin else weights.full[index]
        if chosen and count + weights.sizes[index] > shares.recent_count:
            break
        if is_pin:
            limit = shares.recent
        elif used + tokens > limit:
            break
        chosen.append(index)
        count += weights.sizes[index]
        used += tokens
    return tuple(reversed(chosen))


def _middle(
    weights: Weights, span: Sequence[int], room: int, share: int, pinned: Pin | None
) -> tuple[list[int], dict[int, str]]:
    """Returns the units of tier 2, and for each dropped unit the reason. It fills the tier backwards until it is full;
    a unit larger than tier 2 is skipped."""
    chosen: list[int] = []
    dropped: dict[int, str] = {}
    for index in reversed(span):
        if pinned and index == pinned.at:
            chosen.append(index)
        elif weights.lean[index] > share:
            dropped[index] = TOO_LARGE
        elif weights.lean[index] > room:
            room = -1
            dropped[index] = OVER_BUDGET
        else:
            room -= weights.lean[index]
            chosen.append(index)
    return chosen, dropped
