"""Makes the latest user message fit: it is always sent, but its middle is cut if it alone exceeds the budget."""

from collections.abc import Sequence
from typing import NamedTuple

from turnlog.agent.context.cut import cut_middle
from turnlog.agent.context.message_units import Form, MessagePart, Remark, Unit, part_tokens, render, unit_tokens
from turnlog.agent.context.tokens import TokenCounter
from turnlog.agent.context.wire import Wire


class Item(NamedTuple):
    """One message of the request: the sequence of the stored turn that it shows, its role and its tokens."""

    seq: int
    role: str
    tokens: int


class Shown(NamedTuple):
    """Units in the form in which they are sent: messages with their items, and the total tokens."""

    messages: list[Wire]
    items: list[Item]
    tokens: int


class Shrunk(NamedTuple):
    """A unit that was made to fit, with remarks about parts that were left out or altered."""

    shown: Shown
    dropped: list[Remark]
    altered: list[Remark]


def show(units: Sequence[Unit], form: Form, counter: TokenCounter) -> Shown:
    """Returns the messages of the units in a form, in order."""
    messages: list[Wire] = []
    items: list[Item] = []
    total = 0
    for unit in units:
        for part in unit.parts:
            wire = render(part, form)
            if wire is not None:
                tokens = part_tokens(part, form, counter)
                messages.append(wire)
                items.append(Item(part.message.seq, wire["role"], tokens))
                total += tokens
    return Shown(messages, items, total)


def latest_user(units: Sequence[Unit]) -> int | None:
    """Returns the index of the last unit that contains a user's own text; None if there is none."""
    for index in range(len(units) - 1, -1, -1):
        if _user_part(units[index]):
            return index
    return None


def shrink(unit: Unit, limit: int, form: Form, counter: TokenCounter) -> Shrunk:
    """Returns the unit of the latest user message in at most `limit` tokens: condensed; if that does not fit, only the
    user's own text; if that does not fit, this text with its middle cut."""
    condensed = form._replace(condensed=True)
    if unit_tokens(unit, condensed, counter) <= limit:
        remark = Remark(unit.messages[0].seq, "condensed, since it holds the latest user message and is too large")
        return Shrunk(show([unit], condensed, counter), [], [remark])
    part = _user_part(unit)
    wire = render(part, form) if part else None
    if part is None or wire is None:
        raise ValueError("only a unit with words of a user can be made smaller")
    altered = []
    if part_tokens(part, form, counter) > limit:
        wire = _cut(wire, limit, counter)
        altered.append(Remark(part.message.seq, "cut in the middle: larger than the whole budget"))
    left_out = [Remark(m.seq, "no room beside the latest user message") for m in unit.messages if m is not part.message]
    tokens = counter.wire(wire)
    return Shrunk(Shown([wire], [Item(part.message.seq, "user", tokens)], tokens), left_out, altered)


def _user_part(unit: Unit) -> MessagePart | None:
    return next((p for p in reversed(unit.parts) if p.kind == "body" and p.message.role == "user"), None)


def _cut(wire: Wire, limit: int, counter: TokenCounter) -> Wire:
    """Returns the message as a text with its middle cut; images are only mentioned."""
    content = wire["content"]
    if not isinstance(content, str):
        content = "\n".join(part["text"] if part["type"] == "text" else "[image]" for part in content)
    frame = counter.wire({**wire, "content": ""})
    return {**wire, "content": cut_middle(content, limit - frame, counter)}
