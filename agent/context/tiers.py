"""The tiered context (C1, C2; A 4): messages and memory in, the request's messages and a receipt out."""

from collections.abc import Sequence
from operator import attrgetter

from turnlog.agent.context.given import ContextInput
from turnlog.agent.context.layout import Build, Layout, everything, tiered
from turnlog.agent.context.pin import show
from turnlog.agent.context.receipt import Context, ContextReceipt, context_hash, receipt_tier
from turnlog.agent.context.tokens import REPLY_PRIMING, TokenCounter, counter_for
from turnlog.agent.context.turns import Form, Turns, group
from turnlog.agent.context.window import Budget, budget_for, window_for
from turnlog.agent.context.wire import Wire, WireOptions
from turnlog.projectors.message import Message


def build_context(given: ContextInput) -> Context:
    """Everything unchanged when it fits, else three tiers; always valid for the OpenAI chat API.

    Raises WindowTooSmall when system prompt and tools leave no room.
    """
    counter = counter_for(given.model)
    system = _system(given.system_prompt)
    budget = _budget(given, counter, system)
    options = WireOptions(given.settings.keep_thinking)
    form = Form(False, given.settings.condensed_tool_max, options)
    build = Build(given, counter, budget.budget, form, form._replace(condensed=True))
    messages = _visible(given)
    turns = group(messages, options)
    shown = show(turns.units, form, counter)
    layout = everything(build, shown) or tiered(build, turns.units)
    as_of = given.as_of_seq if given.as_of_seq is not None else max((m.seq for m in messages[-1:]), default=0)
    return _context(build, budget, system, layout, turns, as_of)


def _system(prompt: str) -> list[Wire]:
    return [{"role": "system", "content": prompt}] if prompt else []


def _budget(given: ContextInput, counter: TokenCounter, system: list[Wire]) -> Budget:
    if given.budget is not None:
        return Budget(given.window or window_for(given.model), 0, 0, 0, 0, given.budget)
    frame = counter.wire({"role": "system", "content": ""}) if system else 0
    prompt = frame + counter.cached_text(given.system_prompt) + REPLY_PRIMING
    added = given.reserved + sum(counter.wire(note) for note in given.notes)
    return budget_for(given.model, given.window, prompt, counter.tools(given.tools) + added)


def _visible(given: ContextInput) -> list[Message]:
    ordered = sorted(given.messages, key=attrgetter("seq"))
    if given.as_of_seq is None:
        return ordered
    return [message for message in ordered if message.seq <= given.as_of_seq]


def _with_notes(messages: list[Wire], notes: Sequence[Wire]) -> list[Wire]:
    """Right before the latest user message, which no tool call is parted from its result by; at the end without one."""
    asked = max((place for place, wire in enumerate(messages) if wire["role"] == "user"), default=len(messages))
    return [*messages[:asked], *notes, *messages[asked:]]


def _context(build: Build, budget: Budget, system: list[Wire], layout: Layout, turns: Turns, as_of_seq: int) -> Context:
    given = build.given
    tiers = tuple(tier for tier, _ in layout.tiers)
    messages = _with_notes([*system, *(wire for _, wires in layout.tiers for wire in wires)], given.notes)
    summary_seq = given.summary.seq if given.summary else None
    topics = layout.head.topics if layout.head else ()
    receipt = ContextReceipt(
        as_of_seq=as_of_seq,
        model=given.model,
        encoding=build.counter.encoding.name,
        window=budget.window,
        budget=budget.budget,
        tiers=tuple(receipt_tier(tier, summary_seq, topics) for tier in tiers),
        dropped=tuple(sorted(turns.dropped + layout.dropped)),
        altered=tuple(sorted(turns.altered + layout.altered)),
        recalled_chunks=given.recalled_chunks,
        memories=given.memories,
        relevant=tuple(given.relevant),
        context_hash=context_hash(messages),
    )
    return Context(messages, budget.budget, budget.window, tiers, receipt)
