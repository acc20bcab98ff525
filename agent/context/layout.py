"""The tiers with their messages: everything unchanged, or three tiers by the shares of A 4.1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnlog.agent.context.boundary import Shares, Weights
from turnlog.agent.context.digest import ROLE, Digest, digest
from turnlog.agent.context.given import ContextInput
from turnlog.agent.context.pin import Item, Shown, Shrunk, latest_user, show, shrink
from turnlog.agent.context.receipt import Tier, TierName
from turnlog.agent.context.selection import Pin, Selection, select
from turnlog.agent.context.tokens import TokenCounter
from turnlog.agent.context.turns import SAYS_NOTHING, Form, Remark, Unit, render, unit_tokens
from turnlog.agent.context.wire import Wire


class Layout(NamedTuple):
    """Tiers with their messages, and what the receipt says about the rest."""

    tiers: list[tuple[Tier, list[Wire]]]
    head: Digest | None
    dropped: list[Remark]
    altered: list[Remark]


@dataclass(frozen=True, slots=True)
class Build:
    """One build: the input, what follows from it, and the forms of tier 3 and tier 2."""

    given: ContextInput
    counter: TokenCounter
    budget: int
    unchanged: Form
    condensed: Form

    def digest(self, limit: int) -> Digest | None:
        text = self.given.summary.text if self.given.summary else ""
        return digest(text, self.given.topics, limit, self.counter)

    def weigh(self, units: Sequence[Unit], form: Form) -> list[int]:
        return [unit_tokens(unit, form, self.counter) for unit in units]


def everything(build: Build, shown: Shown) -> Layout | None:
    """The whole conversation unchanged, behind tier 1 if older turns were pruned; None if it does not fit."""
    limit = build.budget // 10
    head = build.digest(limit) if build.given.pruned_through_seq else None
    if shown.tokens + (head.tokens if head else 0) > build.budget:
        return None
    whole = _tier("all", build.budget - (head.tokens if head else 0), shown)
    return Layout([*_tier_one(build, head, limit), whole], head, [], [])


def tiered(build: Build, units: list[Unit]) -> Layout:
    share_one = build.budget // 10
    share_two = build.budget * 35 // 100
    full = build.weigh(units, build.unchanged)
    lean = build.weigh(units, build.condensed)
    index = latest_user(units)
    after = min(sum(lean[index + 1 :]), share_two) if index is not None else 0
    too_large = index is not None and full[index] > build.budget - after
    limit_one = share_one if too_large or index is None else min(share_one, build.budget - after - full[index])
    head = build.digest(limit_one)
    shrunk = None
    if index is not None and too_large:
        room = build.budget - after - (head.tokens if head else 0)
        shrunk = shrink(units[index], room, build.unchanged, build.counter)
    pin = None if index is None else Pin(index, shrunk.shown.tokens if shrunk else full[index])
    shares = _shares(build, share_one, share_two, head, pin)
    weights = Weights(full, lean, [len(u.messages) for u in units])
    selection = select(weights, shares, pin, _relevant(units, build.given.relevant))
    return _lay_out(build, units, selection, shares, head, limit_one, pin, shrunk)


def _relevant(units: Sequence[Unit], seqs: Sequence[int]) -> list[int]:
    """The units that hold these turns, in the order of the turns."""
    if not seqs:
        return []
    of = {message.seq: index for index, unit in enumerate(units) for message in unit.messages}
    return list(dict.fromkeys(of[seq] for seq in seqs if seq in of))


def _shares(build: Build, one: int, two: int, head: Digest | None, pin: Pin | None) -> Shares:
    """Tier 1 keeps its share whole while it exists, so that a growing summary does not move tier 2's start;
    only a latest user message that needs the room takes from it.
    """
    total = build.budget - (one if head else 0)
    if head and pin and pin.tokens > total:
        total = build.budget - head.tokens
    settings = build.given.settings
    return Shares(total, two, build.budget - one - two, settings.full_recent_count, settings.share_unused)


def _lay_out(
    build: Build,
    units: list[Unit],
    selection: Selection,
    shares: Shares,
    head: Digest | None,
    limit_one: int,
    pin: Pin | None,
    shrunk: Shrunk | None,
) -> Layout:
    def shown(indexes: Sequence[int], form: Form) -> Shown:
        parts = []
        for i in indexes:
            pinned = pin is not None and i == pin.at
            parts.append(
                shrunk.shown
                if pinned and shrunk
                else show([units[i]], build.unchanged if pinned else form, build.counter)
            )
        return Shown(
            [m for p in parts for m in p.messages],
            [i for p in parts for i in p.items],
            sum(p.tokens for p in parts),
        )

    recent = shown(selection.recent, build.unchanged)
    middle = shown(selection.middle, build.condensed)
    dropped = [Remark(m.seq, reason) for i, reason in selection.dropped.items() for m in units[i].messages]
    lean = [units[i] for i in selection.middle if pin is None or i != pin.at]
    dropped += [Remark(seq, SAYS_NOTHING) for unit in lean for seq in _lost(unit, build)]
    tiers = [
        *_tier_one(build, head, limit_one),
        _tier("2", shares.middle_room(recent.tokens), middle),
        _tier("3", shares.recent, recent),
    ]
    extra = shrunk or Shrunk(recent, [], [])
    return Layout(tiers, head, dropped + extra.dropped, extra.altered)


def _lost(unit: Unit, build: Build) -> set[int]:
    """Messages of which nothing is left when they are condensed: thinking alone."""
    full, lean = (
        {piece.message.seq for piece in unit.pieces if render(piece, form) is not None}
        for form in (build.unchanged, build.condensed)
    )
    return full - lean


def _tier_one(build: Build, head: Digest | None, limit: int) -> list[tuple[Tier, list[Wire]]]:
    if head is None:
        return []
    seq = build.given.summary.seq if build.given.summary else None
    return [(Tier("1", head.tokens, limit, (Item(seq or 0, ROLE, head.tokens),)), [head.message])]


def _tier(name: TierName, limit: int, shown: Shown) -> tuple[Tier, list[Wire]]:
    return Tier(name, shown.tokens, limit, tuple(shown.items)), shown.messages
