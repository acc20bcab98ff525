"""Builds the tiered context: takes messages and memory, returns the messages of the request and a receipt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from turnlog.agent.context.digest import ROLE, Digest, digest
from turnlog.agent.context.inputs import ContextInput
from turnlog.agent.context.message_units import (
    SAYS_NOTHING,
    Form,
    Remark,
    Turns,
    Unit,
    group,
    part_tokens,
    unit_tokens,
)
from turnlog.agent.context.pin import Item, Shown, Shrunk, latest_user, show, shrink
from turnlog.agent.context.receipt import (
    Context,
    ContextReceipt,
    Tier,
    TierName,
    context_hash,
    receipt_tier,
    remarks_by_reason,
)
from turnlog.agent.context.selection import Pin, Selection, Shares, Weights, select
from turnlog.agent.context.tokens import REPLY_PRIMING, TokenCounter, counter_for
from turnlog.agent.context.window import Budget, budget_for, output_reserve, window_for
from turnlog.agent.context.wire import Wire, WireOptions
from turnlog.events.contracts import TurnSpans, spans_of
from turnlog.projectors.models.conversation.message import Message


class Layout(NamedTuple):
    """The tiers with their messages, and further values for the receipt."""

    tiers: list[tuple[Tier, list[Wire]]]
    head: Digest | None
    dropped: list[Remark]
    altered: list[Remark]


@dataclass(frozen=True, slots=True)
class Build:
    """The state of one build: the input, values derived from it, and the forms of tier 3 and tier 2."""

    inputs: ContextInput
    counter: TokenCounter
    budget: int
    unchanged: Form
    condensed: Form

    def digest(self, limit: int) -> Digest | None:
        text = self.inputs.summary.text if self.inputs.summary else ""
        return digest(text, self.inputs.topics, limit, self.counter)

    def weigh(self, units: Sequence[Unit], form: Form) -> list[int]:
        """Returns the tokens of each unit in a form."""
        return [unit_tokens(unit, form, self.counter) for unit in units]

    def condense(self, units: Sequence[Unit], full: Sequence[int]) -> list[int]:
        """Returns the tokens of each condensed unit. full: tokens of the units unchanged; a plain message keeps this
        number."""
        return [
            unit_tokens(unit, self.condensed, self.counter) if unit.several else tokens
            for unit, tokens in zip(units, full, strict=True)
        ]


def everything(build: Build, units: Sequence[Unit], full: Sequence[int]) -> Layout | None:
    """Returns the complete conversation unchanged, after tier 1 if older turns were pruned; None if it does not fit.
    full: tokens of the units."""
    limit = build.budget // 10
    head = build.digest(limit) if build.inputs.pruned_through_seq else None
    room = build.budget - (head.tokens if head else 0)
    if sum(full) > room:
        return None
    whole = _tier("all", room, show(units, build.unchanged, build.counter))
    return Layout([*_tier_one(build, head, limit), whole], head, [], [])


def tiered(build: Build, units: list[Unit], full: list[int]) -> Layout:
    """Returns the three tiers of a conversation that does not fit unchanged. full: tokens of the units, unchanged."""
    share_one = build.budget // 10
    share_two = build.budget * 35 // 100
    lean = build.condense(units, full)
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
    selection = select(weights, shares, pin, _relevant(units, build.inputs.relevant))
    return _lay_out(build, units, selection, shares, head, limit_one, pin, shrunk)


def _relevant(units: Sequence[Unit], seqs: Sequence[int]) -> list[int]:
    """Returns the indexes of the units that contain these turns, in the order of the turns."""
    if not seqs:
        return []
    of = {message.seq: index for index, unit in enumerate(units) for message in unit.messages}
    return list(dict.fromkeys(of[seq] for seq in seqs if seq in of))


def _shares(build: Build, share_one: int, share_two: int, head: Digest | None, pin: Pin | None) -> Shares:
    """Returns the tokens of each tier. Tier 1 reserves its complete share while it exists, so that a growing summary
    does not move the start of tier 2; only a large latest user message reduces the share."""
    total = build.budget - (share_one if head else 0)
    if head and pin and pin.tokens > total:
        total = build.budget - head.tokens
    settings = build.inputs.settings
    return Shares(
        total, share_two, build.budget - share_one - share_two, settings.full_recent_count, settings.share_unused
    )


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
    """Returns the sequences of messages that are empty when condensed because they contain only thinking."""
    if not unit.several:
        return set()
    full, lean = (
        {part.message.seq for part in unit.parts if part_tokens(part, form, build.counter)}
        for form in (build.unchanged, build.condensed)
    )
    return full - lean


def _tier_one(build: Build, head: Digest | None, limit: int) -> list[tuple[Tier, list[Wire]]]:
    if head is None:
        return []
    seq = build.inputs.summary.seq if build.inputs.summary else None
    return [(Tier("1", head.tokens, limit, (Item(seq or 0, ROLE, head.tokens),)), [head.message])]


def _tier(name: TierName, limit: int, shown: Shown) -> tuple[Tier, list[Wire]]:
    return Tier(name, shown.tokens, limit, tuple(shown.items)), shown.messages


@dataclass(frozen=True, slots=True)
class Prepared:
    """The parts of a context that do not depend on which turns are relevant. full: tokens of the units, unchanged.
    whole: the layout with everything unchanged; None if it does not fit."""

    build: Build
    budget: Budget
    system: list[Wire]
    turns: Turns
    full: list[int]
    whole: Layout | None
    as_of_seq: int

    @property
    def fits(self) -> bool:
        """Returns whether everything fits unchanged."""
        return self.whole is not None

    def with_relevant(self, relevant: Sequence[int], doubt: str | None) -> "Prepared":
        """Returns a copy with other values of `relevant` and `doubt`, see ContextInput."""
        inputs = replace(self.build.inputs, relevant=relevant, doubt=doubt)
        return replace(self, build=replace(self.build, inputs=inputs))

    def context(self) -> Context:
        """Returns the context with everything unchanged if it fits, otherwise with three tiers."""
        build, budget, turns = self.build, self.budget, self.turns
        inputs, layout = build.inputs, self.whole or tiered(build, turns.units, self.full)
        tiers = tuple(tier for tier, _ in layout.tiers)
        doubt = _doubt(build, budget, sum(tier.tokens for tier in tiers))
        notes = [*inputs.notes, *doubt]
        messages = _with_notes([*self.system, *(wire for _, wires in layout.tiers for wire in wires)], notes)
        summary_seq = inputs.summary.seq if inputs.summary else None
        topics = layout.head.topics if layout.head else ()
        shown = inputs.messages
        positions = inputs.places or _places(shown, inputs.pruned_through_seq)
        dropped = tuple(sorted(turns.dropped + layout.dropped))
        altered = tuple(sorted(turns.altered + layout.altered))
        receipt = ContextReceipt(
            as_of_seq=self.as_of_seq,
            model=inputs.model,
            encoding=build.counter.encoding.name,
            window=budget.window,
            budget=budget.budget,
            tiers=tuple(receipt_tier(tier, summary_seq, topics, positions) for tier in tiers),
            dropped=TurnSpans.of((remark.seq for remark in dropped), positions),
            remarks=remarks_by_reason((*dropped, *altered), positions),
            state=spans_of((message.seq for message in shown), positions),
            recalled_chunks=inputs.recalled_chunks,
            memories=inputs.memories,
            known=inputs.known,
            relevant=tuple(inputs.relevant),
            doubt=inputs.doubt if doubt else None,
            context_hash=context_hash(messages),
        )
        return Context(messages, budget.budget, budget.window, budget.reserve, tiers, receipt, dropped, altered)


def build_context(inputs: ContextInput) -> Context:
    """Returns the context with everything unchanged if it fits, otherwise with three tiers. It is always valid for the
    OpenAI chat API.

    Raises WindowTooSmall if system prompt and tools leave no room.
    """
    return prepared(inputs).context()


def prepared(inputs: ContextInput) -> Prepared:
    """Groups and counts the turns of the input, from which `Prepared.context` then makes the context. Raises
    WindowTooSmall if the system prompt and the tools leave no room."""
    counter = counter_for(inputs.model)
    system = [{"role": "system", "content": inputs.system_prompt}] if inputs.system_prompt else []
    budget = _budget(inputs, counter, system)
    options = WireOptions(inputs.settings.keep_thinking)
    form = Form(False, inputs.settings.condensed_tool_max, options)
    messages = _visible(inputs)
    build = Build(replace(inputs, messages=messages), counter, budget.budget, form, form._replace(condensed=True))
    turns = group(messages, options)
    as_of = inputs.as_of_seq if inputs.as_of_seq is not None else max((m.seq for m in messages[-1:]), default=0)
    full = build.weigh(turns.units, form)
    return Prepared(build, budget, system, turns, full, everything(build, turns.units, full), as_of)


def _budget(inputs: ContextInput, counter: TokenCounter, system: list[Wire]) -> Budget:
    if inputs.budget is not None:
        window = inputs.window or window_for(inputs.model)
        return Budget(window, 0, max(output_reserve(window), inputs.answer_tokens), 0, 0, inputs.budget)
    frame = counter.wire({"role": "system", "content": ""}) if system else 0
    prompt = frame + counter.cached_text(inputs.system_prompt) + REPLY_PRIMING
    added = inputs.reserved + sum(counter.wire(note) for note in inputs.notes)
    return budget_for(inputs.model, inputs.window, prompt, counter.tools(inputs.tools) + added, inputs.answer_tokens)


def _visible(inputs: ContextInput) -> list[Message]:
    ordered = sorted(inputs.messages, key=attrgetter("seq"))
    if inputs.as_of_seq is None:
        return ordered
    return [message for message in ordered if message.seq <= inputs.as_of_seq]


def _with_notes(messages: list[Wire], notes: Sequence[Wire]) -> list[Wire]:
    """Returns the messages with the notes inserted right before the latest user message, so that they never separate a
    tool call from its result; at the end if there is no user message."""
    asked = max((index for index, wire in enumerate(messages) if wire["role"] == "user"), default=len(messages))
    return [*messages[:asked], *notes, *messages[asked:]]


def _doubt(build: Build, budget: Budget, used: int) -> list[Wire]:
    """Returns the line of `doubt` as a message, if it fits beside the turns or into half of the safety margin;
    otherwise []. No turn is dropped for it."""
    if build.inputs.doubt is None:
        return []
    wire: Wire = {"role": "user", "content": build.inputs.doubt}
    return [wire] if build.counter.wire(wire) <= max(budget.budget - used, budget.safety // 2) else []


def _places(messages: Sequence[Message], pruned_through: int) -> dict[int, int]:
    """Returns the position of each turn in its thread, for spans. Only some of the pruned turns are known, so pruned
    turns get positions that are never adjacent."""
    return {message.seq: at if message.seq > pruned_through else -2 * at - 2 for at, message in enumerate(messages)}
