"""Counts how many tokens of the window each part of a context takes."""

from dataclasses import dataclass

from turnlog.agent.context.receipt import Context
from turnlog.agent.context.tokens import REPLY_PRIMING, counter_for


@dataclass(frozen=True, slots=True)
class MessageShare:
    """One message of the context. part: `system`, `memories`, or its tier. seq: of the stored turn, or of the summary
    in tier 1 (0 if that has only topics); None for other messages."""

    part: str
    seq: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class WindowShares:
    """How the tokens of the window are divided.

    tools: schemas of tools. reserve: kept for the answer. safety: margin for counts that differ from the model's. free:
    unused tokens of the tiers' budget. messages: in the order of the context's messages.
    """

    window: int
    system: int
    tools: int
    memories: int
    reserve: int
    safety: int
    free: int
    messages: tuple[MessageShare, ...]


def shares_of(context: Context, has_system_prompt: bool) -> WindowShares:
    """Returns how the window is divided. The memories and other notes are found right before the latest user message,
    or at the end if there is no user message."""
    counter = counter_for(context.receipt.model)
    shown = [MessageShare(tier.tier, item.seq, item.tokens) for tier in context.tiers for item in tier.items]
    first = int(has_system_prompt)
    notes = len(context.messages) - len(shown) - first
    end = len(context.messages)
    if any(item.role == "user" for tier in context.tiers for item in tier.items):
        end = max(at for at, message in enumerate(context.messages) if message["role"] == "user")
    begin = end - notes
    system = tuple(MessageShare("system", None, counter.wire(each)) for each in context.messages[:first])
    memories = tuple(
        MessageShare("memories", None, counter.wire(each)) for each in context.messages[begin : begin + notes]
    )
    of_system, of_memories = (sum(share.tokens for share in part) for part in (system, memories))
    window, safety, reserve = context.window, context.window // 10, context.reserve
    rest = window - safety - reserve - of_system - of_memories - REPLY_PRIMING - context.budget
    free = max(0, context.budget - sum(tier.tokens for tier in context.tiers))
    before = begin - first
    messages = (*system, *shown[:before], *memories, *shown[before:])
    return WindowShares(window, of_system, max(0, rest), of_memories, reserve, safety, free, messages)
