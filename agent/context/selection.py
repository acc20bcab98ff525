"""Which units go into which tier when not everything fits (C2, C8). Indexes in, indexes out."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from turnlog.agent.context.boundary import Shares, Weights, middle_start

OVER_BUDGET = "older than what fits into the budget"
TOO_LARGE = "larger than tier 2's whole share"
RELEVANT_PERCENT = 75  # of tier 2's room, at most, for what is relevant to the question


class Pin(NamedTuple):
    """The unit with the latest user message, which is always sent; `tokens` as it will be sent."""

    at: int
    tokens: int


class Selection(NamedTuple):
    """Indexes of units per tier, in order; `dropped` says why the others are not there."""

    middle: tuple[int, ...]
    recent: tuple[int, ...]
    dropped: dict[int, str]


def select(weights: Weights, shares: Shares, pin: Pin | None, relevant: Sequence[int] = ()) -> Selection:
    """Tier 3 from the newest backwards, then tier 2 backwards from there; the pin in the tier it falls into.

    relevant: units that come first in tier 2, best first, wherever in the thread they are (C8).

    All tokens together are at most `shares.total`, if the pin alone is.
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
    """Of the relevant units, best first, those that find room; one that does not leaves it to the next."""
    kept: dict[int, None] = {}
    for index in relevant:
        tokens = weights.lean[index]
        if index not in kept and tokens <= min(room, share):
            kept[index] = None
            room -= tokens
    return kept.keys()


def _recent(weights: Weights, shares: Shares, pin: Pin | None) -> tuple[int, ...]:
    """The newest units, at most `recent_count` messages and tier 3's share.

    The newest unit may have more messages, since it is never cut. The pin may borrow from the other tiers;
    what is newer than the pin then gets what the pin leaves.
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
    """Fill backwards while there is room; a unit that no tier 2 could ever hold does not end the filling."""
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
