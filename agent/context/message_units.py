"""Groups messages into units that are never split: an assistant's tool calls form one unit with all their results.

The output is valid for the API for any log: results are matched to their calls even if they are late or out of order, a
second result of a call is dropped, a result without a call is shown as text, and a call without a result gets a
placeholder.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

from turnlog.agent.context.condense import TOOL_MAX, condense
from turnlog.agent.context.tokens import TokenCounter
from turnlog.agent.context.wire import Result, Wire, WireOptions, body, calls, results, tail, tool_message
from turnlog.projectors.models.conversation.message import Message

NO_RESULT = "(no result recorded)"
SAYS_NOTHING = "nothing but thinking or empty blocks"
ORPHAN = "[Result of a tool call that is not part of this conversation]"


class Form(NamedTuple):
    """The form in which messages are shown: unchanged (tier 3) or condensed (tier 2)."""

    condensed: bool = False
    tool_max: int = TOOL_MAX
    options: WireOptions = WireOptions()


class MessagePart(NamedTuple):
    """The part of a stored message that becomes one API message. nth: number of the result in the message. call_id: the
    call that it answers."""

    message: Message
    kind: Literal["body", "tail", "result", "orphan", "missing"]
    nth: int = 0
    call_id: str = ""


class Unit(NamedTuple):
    """Messages that stay together, in the order of the log. several: their parts in the order of the API; empty for a
    plain message. Most messages are plain, so this saves memory in a conversation of 50,000 turns."""

    messages: tuple[Message, ...]
    several: tuple[MessagePart, ...] = ()

    @property
    def parts(self) -> tuple[MessagePart, ...]:
        return self.several or (MessagePart(self.messages[0], "body"),)


class Remark(NamedTuple):
    """A remark in the receipt about the message at the sequence `seq`."""

    seq: int
    reason: str


@dataclass(slots=True)
class Turns:
    """The grouped conversation. dropped: messages in no unit; altered: messages shown in another form, or only in
    part."""

    units: list[Unit] = field(default_factory=list)
    dropped: list[Remark] = field(default_factory=list)
    altered: list[Remark] = field(default_factory=list)


@dataclass(slots=True)
class _Exchange:
    """An assistant message with calls, while its results are collected."""

    opener: Message
    open: dict[str, str]
    answers: dict[str, MessagePart] = field(default_factory=dict)
    extra: list[MessagePart] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


class _Grouping:
    def __init__(self, options: WireOptions) -> None:
        self.options = options
        self.out = Turns()
        self.slots: list[Unit | _Exchange] = []
        self.waiting: dict[str, _Exchange] = {}
        self.answered: set[str] = set()

    def add(self, message: Message) -> None:
        if is_plain(message):
            self.slots.append(Unit((message,)))
        elif message.role == "assistant" and (tool_calls := calls(message)):
            self._open(message, {call.stored_id: call.wire["id"] for call in tool_calls})
        else:
            self._add_mixed(message)

    def _open(self, message: Message, ids: dict[str, str]) -> None:
        exchange = _Exchange(message, ids, messages=[message])
        self.slots.append(exchange)
        self.waiting |= dict.fromkeys(ids, exchange)
        self.answered -= ids.keys()
        for index, result in enumerate(results(message)):
            self._answer(exchange, message, index, result)
        if tail(message, self.options) is not None:
            exchange.extra.append(MessagePart(message, "tail"))

    def _add_mixed(self, message: Message) -> None:
        """Adds a message with blocks or results to the exchange that it answers, or else as a separate unit."""
        tool_results = results(message)
        shown = self._own_words(message)
        home = self._home(tool_results, must_be_last=bool(shown))
        if home is None:
            self._stand_alone(message, tool_results, shown)
            return
        home.messages.append(message)
        for index, result in enumerate(tool_results):
            self._answer(home, message, index, result)
        home.extra += shown

    def _own_words(self, message: Message) -> list[MessagePart]:
        """Returns the parts of a message's content without its tool results."""
        words = [MessagePart(message, "body")] if body(message, self.options) is not None else []
        return [*words, MessagePart(message, "tail")] if tail(message, self.options) is not None else words

    def _home(self, tool_results: list[Result], must_be_last: bool) -> _Exchange | None:
        """Returns the exchange that the results belong to, or None. A message with text may only belong to the latest
        exchange, because text must not move back in time."""
        homes = [self.waiting[r.call_id] for r in tool_results if r.call_id is not None and r.call_id in self.waiting]
        if must_be_last:
            homes = [home for home in homes if home is self.slots[-1]]
        return homes[-1] if homes else None

    def _stand_alone(self, message: Message, tool_results: list[Result], shown: list[MessagePart]) -> None:
        orphans = [p for i, r in enumerate(tool_results) if (p := self._orphan(message, i, r)) is not None]
        if orphans or shown:
            self.slots.append(Unit((message,), (*orphans, *shown)))
        elif not tool_results:
            self.out.dropped.append(Remark(message.seq, SAYS_NOTHING))
        else:
            self.out.dropped.append(Remark(message.seq, "second result for the same call"))

    def _answer(self, exchange: _Exchange, message: Message, index: int, result: Result) -> None:
        call_id = result.call_id
        if call_id is not None and self.waiting.get(call_id) is exchange:
            wire_id = exchange.open[call_id]
            exchange.answers[wire_id] = MessagePart(message, "result", index, wire_id)
            del self.waiting[call_id]
            self.answered.add(call_id)
        elif (orphan := self._orphan(message, index, result)) is not None:
            exchange.extra.append(orphan)

    def _orphan(self, message: Message, index: int, result: Result) -> MessagePart | None:
        if result.call_id in self.answered:
            self.out.altered.append(Remark(message.seq, "second result for the same call left out"))
            return None
        self.out.altered.append(Remark(message.seq, "result without its call, shown as text"))
        return MessagePart(message, "orphan", index)

    def finish(self) -> Turns:
        self.out.units = [s if isinstance(s, Unit) else self._close(s) for s in self.slots]
        gone = {remark.seq for remark in self.out.dropped}
        self.out.altered = [remark for remark in self.out.altered if remark.seq not in gone]
        return self.out

    def _close(self, exchange: _Exchange) -> Unit:
        opener = exchange.opener
        answers = [
            exchange.answers.get(wire_id) or MessagePart(opener, "missing", 0, wire_id)
            for wire_id in exchange.open.values()
        ]
        if len(exchange.answers) < len(exchange.open):
            self.out.altered.append(Remark(opener.seq, "call without a result, given a placeholder"))
        parts = (MessagePart(opener, "body"), *answers, *exchange.extra)
        return Unit(tuple(exchange.messages), parts)


def group(messages: Iterable[Message], options: WireOptions | None = None) -> Turns:
    """Returns the messages grouped into units, in the order of their first messages. messages: in the order of the log.
    Every message is in at most one unit."""
    grouping = _Grouping(options or WireOptions())
    for message in messages:
        grouping.add(message)
    return grouping.finish()


def render(part: MessagePart, form: Form) -> Wire | None:
    """Returns the part as an API message; None if it is empty when condensed."""
    message = condense(part.message, form.tool_max) if form.condensed else part.message
    if part.kind == "body":
        return body(message, form.options)
    if part.kind == "tail":
        return tail(message, form.options)
    if part.kind == "missing":
        return tool_message(part.call_id, NO_RESULT)
    text = results(message)[part.nth].text
    if part.kind == "result":
        return tool_message(part.call_id, text)
    # As the assistant's words, because a tool result must not gain the user's authority.
    return {"role": "assistant", "content": f"{ORPHAN}\n{text}"}


def part_tokens(part: MessagePart, form: Form, counter: TokenCounter) -> int:
    """Returns the number of tokens of a part in a form. Each part is counted once per process; equal forms share the
    count."""
    if is_plain(part.message):
        return _plain_tokens(part.message, form, counter)

    def count() -> int:
        if form.condensed and condense(part.message, form.tool_max) is part.message:
            return part_tokens(part, form._replace(condensed=False), counter)
        wire = render(part, form)
        return counter.wire(wire) if wire is not None else 0

    return counter.once(part.message, (part.kind, part.nth, form), count)


def is_plain(message: Message) -> bool:
    """Returns whether the message is only a text, which is the same in every form. Most turns are."""
    return isinstance(message.content, str) and not message.tool_calls and message.role != "tool"


def unit_tokens(unit: Unit, form: Form, counter: TokenCounter) -> int:
    """Returns the tokens of a unit in a form."""
    if not unit.several:
        return _plain_tokens(unit.messages[0], form, counter)
    return sum(part_tokens(part, form, counter) for part in unit.several)


def _plain_tokens(message: Message, form: Form, counter: TokenCounter) -> int:
    return counter.once(message, "plain", lambda: counter.wire(body(message, form.options) or {}))


def cuts(messages: Sequence[Message]) -> list[int]:
    """Returns how many of the oldest messages may be cut off without separating a call from its result: all such
    numbers, in ascending order."""
    positions = {message.seq: at for at, message in enumerate(messages)}
    end = list(range(len(messages)))
    for unit in group(messages).units:
        at = [positions[message.seq] for message in unit.messages]
        end[min(at)] = max(at)
    reach = accumulate(end, max)
    return [at + 1 for at, farthest in enumerate(reach) if farthest <= at]
