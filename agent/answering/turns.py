"""Appends turns to a conversation, with the receipt of an answer, and converts turns for clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from pydantic import ValidationError
from uuid_utils.compat import uuid7

from turnlog.agent.access.throttle.pace import in_pace
from turnlog.agent.answering.record import Answer, Author, record
from turnlog.agent.context.wire import called, message_content
from turnlog.agent.conversations.blocks import content_of
from turnlog.agent.conversations.participants import speakers_of
from turnlog.agent.memory.extraction.evidence import quoted_ranges, said_text
from turnlog.agent.runtime import Runtime
from turnlog.events.append import MAX_BATCH
from turnlog.events.contracts import (
    Event,
    ToolCall,
    TurnOrigin,
    TurnRecorded,
    UsageMetered,
)
from turnlog.events.errors import InvalidEvent
from turnlog.events.publish import Appended
from turnlog.events.subjects import check_place
from turnlog.events.texts import storable
from turnlog.projectors.models.conversation.message import Message

if TYPE_CHECKING:
    from turnlog.agent.answering.prepare import AnswerBasis

SOURCE = "turnlog/turns"
READS = ("messages", "thread_activity", "archives")
PART = 500


class WrongReceipt(InvalidEvent):
    """The receipt cannot belong to the turn that was sent with it."""

    code = "wrong-receipt"


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn to append. content: text, or blocks in the form of turnlog, OpenAI or Anthropic; None for a turn that has
    only tool calls.

    tool_calls: each {"id", "name", "arguments"}, or in the form of the OpenAI API. id: the id of the event; a second
    append with the same id changes nothing. origin: whose words a user's turn contains, if the sender knows it better
    than turnlog can tell from name and text. latency_ms, tokens_in, tokens_out: as the provider reported them.
    """

    role: str
    content: str | Sequence[Mapping[str, Any]] | None = None
    name: str | None = None
    tool_calls: Sequence[Mapping[str, Any] | ToolCall] = ()
    tool_call_id: str | None = None
    agent: str | None = None
    model: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    latency_ms: float | None = None
    source_id: str | None = None
    origin: TurnOrigin | None = None
    time: datetime | None = None
    id: UUID = field(default_factory=uuid7)


@dataclass(frozen=True, slots=True)
class ShownTurn(Message):
    """A turn in the form shown to people and programs. quoted: parts of a person's text that are somebody else's words,
    as (start, end) in characters; text blocks are joined by line breaks."""

    quoted: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Added:
    """Turns that were appended. turns: one entry for each. version: the sequence of the last event stored with them,
    which the next append may expect."""

    turns: list[Appended]
    version: int


async def add_turn(
    runtime: Runtime,
    tenant: str,
    thread: str,
    turn: NewTurn,
    *,
    user: str | None = None,
    expected: int | None = None,
    receipt: "AnswerBasis | None" = None,
    usage: UsageMetered | None = None,
) -> Appended:
    """Appends one turn, as add_turns does."""
    where = (runtime, tenant, thread)
    return (await add_turns(*where, [turn], user=user, expected=expected, receipt=receipt, usage=usage)).turns[0]


async def add_turns(
    runtime: Runtime,
    tenant: str,
    thread: str,
    turns: Sequence[NewTurn],
    *,
    user: str | None = None,
    expected: int | None = None,
    receipt: "AnswerBasis | None" = None,
    usage: UsageMetered | None = None,
) -> Added:
    """Appends the turns in order; the result has one entry per turn, with `duplicate` set if its id was stored before.

    expected: the thread's last sequence that the caller knows; 0 for a new thread. receipt: the receipt of the context
    that the turns answer; it is stored with them in one atomic batch. If the context had a query that was not on the
    log, the query is appended first, as the user's turn. usage: usage of the model that made the turns, stored with
    them. A turn with the name of a participant is attributed to that participant (participants.py).

    Raises InvalidEvent, InvalidToken, WrongReceipt, EventTooLarge, WrongExpectedVersion, LogFull, LogUnavailable;
    NotFound for a receipt of a conversation that was deleted since; Forbidden for another participant's name if the
    user is not the owner.
    """
    check_place(tenant, thread, user)
    author = Author(SOURCE, tenant, thread, user if receipt is None else user or receipt.user)
    if receipt is not None:
        _check_receipt(receipt, tenant, thread, user, turns)
    cause = receipt.turn_id if receipt is not None else None
    names = {turn.name for turn in turns if turn.role == "user" and turn.name}
    speakers = await speakers_of(runtime, tenant, thread, author.user, names) if author.user else {}
    events = [_said_by(speakers.get(turn.name or ""), author, turn, cause) for turn in turns]
    last = events[-1].id if events else None
    # The id of the usage is derived from that of the last turn, so that a repeated append counts once.
    usages = [author.event(uuid5(last, "usage"), usage, last)] if usage is not None and last is not None else []
    if receipt is None:
        done = await _append(runtime, [*events, *usages], expected)
    else:
        answer = Answer(author, receipt, uuid5(events[0].id, "receipt"), events, usages)
        done = await record(runtime, answer, expected=expected)
    return Added(done[: len(events)], done[-1].seq if done else 0)


def _said_by(speaker: str | None, author: Author, turn: NewTurn, cause: UUID | None) -> Event:
    """Returns the event of a turn. speaker: the participant to whom a user's turn is attributed; None means the
    author."""
    data = _data(turn)
    if speaker is not None and data.role == "user":
        author, data = replace(author, user=speaker), data.of(turn.name)
    return author.event(turn.id, data, cause, turn.time)


def shown(turn: Message) -> ShownTurn:
    quoted = quoted_ranges(said_text(turn.content)) if turn.origin == "person" else []
    return ShownTurn(**{attribute.name: getattr(turn, attribute.name) for attribute in fields(turn)}, quoted=quoted)


def turn_of(message: Mapping[str, Any]) -> NewTurn:
    """Returns a turn from a message of the OpenAI chat API. Raises InvalidEvent."""
    if not isinstance(message.get("role"), str):
        raise InvalidEvent("the turn cannot be stored: a message needs a role")
    role = "system" if message["role"] == "developer" else message["role"]
    return NewTurn(
        role,
        message_content(message),
        name=message.get("name"),
        tool_calls=message.get("tool_calls") or (),
        tool_call_id=message.get("tool_call_id"),
    )


async def _append(runtime: Runtime, events: Sequence[Event], expected: int | None) -> list[Appended]:
    """Appends the events in parts of MAX_BATCH, each at the pace that the throttle allows the user."""
    done: list[Appended] = []
    for part in (events[at : at + MAX_BATCH] for at in range(0, len(events), MAX_BATCH)):
        async with in_pace(runtime, part):
            if len(part) == 1:  # a single append shares a disk sync with concurrent appends
                done.append(await runtime.log.append(part[0], None if done else expected))
            else:
                done += await runtime.log.append_many(part, None if done else expected)
    return done


def _check_receipt(basis: "AnswerBasis", tenant: str, thread: str, user: str | None, turns: Sequence[NewTurn]) -> None:
    """Raises WrongReceipt for a receipt of another thread or user. A receipt contains memories of its user; sealed with
    another user's key, they would survive an erasure."""
    if (basis.tenant, basis.thread) != (tenant, thread):
        raise WrongReceipt(f"the receipt is of thread {basis.thread!r}, and the turns are for {thread!r}")
    if user is not None and basis.user is not None and user != basis.user:
        raise WrongReceipt(f"the receipt is of a context for another user than {user!r}; build one for this user")
    if not turns or turns[0].role != "assistant":
        raise WrongReceipt("a receipt is of an answer: the first turn that comes with it must be the assistant's")
    if len(turns) > MAX_BATCH - 2:
        raise WrongReceipt(f"an answer of {len(turns)} turns is too long to be stored with its receipt")


def _data(turn: NewTurn) -> TurnRecorded:
    """Returns the turn as the data of its event. Raises InvalidEvent."""
    try:
        calls = tuple(_call(storable(call)) for call in turn.tool_calls)
        return TurnRecorded(
            role=turn.role,
            content=""
            if turn.content is None and (calls or turn.role == "assistant")
            else content_of(storable(_plain(turn.content))),
            name=storable(turn.name),
            tool_calls=calls,
            tool_call_id=turn.tool_call_id,
            agent=turn.agent,
            model=turn.model,
            tokens_in=turn.tokens_in,
            tokens_out=turn.tokens_out,
            latency_ms=turn.latency_ms,
            source_id=turn.source_id,
            origin=turn.origin if turn.role == "user" else None,
        )
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise InvalidEvent(f"the turn cannot be stored: {wrong}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidEvent(f"the turn cannot be stored: {error}") from None


def _plain(content: str | Sequence[Mapping[str, Any]] | None) -> Any:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise TypeError(f"content is text or a list of blocks, not {type(content).__name__}")
    return list(content)


def _call(call: Mapping[str, Any] | ToolCall) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    name, arguments = called(call)
    return ToolCall(id=call["id"], name=name, arguments=arguments or "{}")
