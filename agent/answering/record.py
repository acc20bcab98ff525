"""Records an answer: turns, receipt and usage are one atomic batch, whose ids are derived from the request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING
from uuid import UUID

from pydantic import ValidationError

from turnlog.agent.access.throttle.pace import in_pace
from turnlog.agent.context import answer_receipt
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import REMOVALS, Event, EventData, Span, ToolCall, TurnRecorded, TurnSpans
from turnlog.events.errors import InvalidEvent, NotFound
from turnlog.events.local_time import now_there
from turnlog.events.log import Log
from turnlog.events.publish import Appended
from turnlog.events.texts import storable

if TYPE_CHECKING:
    from turnlog.agent.answering.pieces import Round
    from turnlog.agent.answering.prepare import AnswerBasis


@dataclass(frozen=True, slots=True)
class Author:
    """The author of an answer's events. zone: time zone of their times; None means that of this machine."""

    source: str
    tenant: str
    thread: str
    user: str | None
    correlation: UUID | None = None
    zone: tzinfo | None = None

    def event(self, id_: UUID, data: EventData, causation: UUID | None = None, time: datetime | None = None) -> Event:
        """Returns an event of this author. Raises InvalidEvent."""
        try:
            return Event(
                id=id_,
                source=self.source,
                time=time or (datetime.now(self.zone) if self.zone else now_there()),
                tenant=self.tenant,
                thread=self.thread,
                user=self.user,
                causation=causation,
                correlation=self.correlation,
                data=data,
            )
        except ValidationError as error:
            raise InvalidEvent(f"the turn cannot be stored: {error.errors()[0]['msg']}") from None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to record. turns: turns of the agent and its tools, in order. usages: usage of the model calls.
    answer_ids: ids of the turns, if they are already on the log. request_id: id of the request; None means the turn
    that is answered. chunks: ids of chunks that tools fetched after the context was built."""

    author: Author
    basis: "AnswerBasis"
    receipt_id: UUID
    turns: Sequence[Event]
    usages: Sequence[Event]
    answer_ids: tuple[UUID, ...] = ()
    request_id: UUID | None = None
    chunks: tuple[str, ...] = ()


def answer_of(
    author: Author,
    basis: "AnswerBasis",
    rounds: "Sequence[Round]",
    agent: str,
    id_of: Callable[[str], UUID],
    request_id: UUID | None = None,
) -> Answer:
    """Returns the answer that `run` made in these rounds. id_of: returns the event id for a part of the answer."""
    cause = request_id or basis.turn_id
    turns, usages = list[Event](), list[Event]()
    for number, made in enumerate(rounds):
        completion, name = made.completion, "answer" if made is rounds[-1] else f"round-{number}"
        speaker = made.agent or agent
        said = TurnRecorded(
            role="assistant",
            content=storable(completion.text),
            tool_calls=tuple(ToolCall(**storable(call.model_dump())) for call in completion.tool_calls),
            agent=speaker,
            model=completion.model,
            tokens_in=completion.tokens_in,
            tokens_out=completion.tokens_out,
            latency_ms=completion.latency_ms,
        )
        turns.append(author.event(id_of(name), said, cause))
        for at, (call, result) in enumerate(made.results):
            data = TurnRecorded(role="tool", content=result.text, tool_call_id=call.id, name=call.name)
            turns.append(author.event(id_of(f"round-{number}/result-{at}"), data, cause))
        usages.append(author.event(id_of(f"usage-{number}"), completion.metered(speaker), cause))
    chunks = tuple(chunk for made in rounds for _, result in made.results for chunk in result.chunks)
    return Answer(author, basis, id_of("receipt"), turns, usages, (), request_id, chunks)


async def record(
    runtime: Runtime, answer: Answer, *, expected: int | None = None, is_repeatable: bool = False
) -> list[Appended]:
    """Appends turns, receipt and usages in this order; returns their positions on the log. A query that is not on the
    log yet is appended first, as the user's turn.

    expected: the thread's version. is_repeatable: another attempt may have recorded this answer in other words; if
    JetStream still knows it (see append_atomic), nothing is appended. With is_repeatable, the result is always [].
    Raises NotFound if the conversation was deleted after the context was built, WrongExpectedVersion, EventTooLarge,
    LogFull, LogUnavailable.
    """
    author, basis = answer.author, answer.basis
    if await _is_removed(runtime.log, basis):
        raise NotFound(f"thread {basis.thread!r} was deleted before the answer came")
    if basis.question is not None:
        asked = author.event(basis.turn_id, TurnRecorded(role="user", content=basis.question))
        async with in_pace(runtime, [asked]):
            question = await runtime.log.append(asked, expected)
        basis = _with_question(basis, question.seq)
        expected = None if expected is None or question.duplicate else question.seq
    request_id = answer.request_id or basis.turn_id
    receipt = answer_receipt(
        basis.context,
        request_id=request_id,
        turn_id=basis.turn_id,
        answer_ids=answer.answer_ids or tuple(event.id for event in answer.turns),
        system_prompt=basis.system_prompt,
        settings=basis.settings,
        recalled_chunks=answer.chunks,
    ).model_copy(update={"notes": basis.notes})
    events = [*answer.turns, author.event(answer.receipt_id, receipt, request_id), *answer.usages]
    if is_repeatable:
        await runtime.log.append_atomic(events)
        return []
    async with in_pace(runtime, events):
        return await runtime.log.append_many(events, expected)


async def _is_removed(log: Log, basis: "AnswerBasis") -> bool:
    """Returns whether the thread was deleted or erased after the context was built."""
    as_of = basis.context.as_of_seq
    return bool(as_of) and await log.thread_head_of(basis.tenant, basis.thread, REMOVALS) > as_of


def _with_question(basis: "AnswerBasis", seq: int) -> "AnswerBasis":
    """Returns the basis with the question's real sequence instead of the placeholder in the context.

    The sequence becomes a separate span, because other turns may have been appended before it.
    """
    made, asked = basis.context, basis.question_seq

    def moved(spans: tuple[Span, ...]) -> tuple[Span, ...]:
        if not spans or spans[-1][1] != asked:
            return spans
        before = [(spans[-1][0], asked - 1)] if spans[-1][0] < asked else []
        return (*spans[:-1], *before, (seq, seq))

    def among(turns: TurnSpans) -> TurnSpans:
        return turns.model_copy(update={"spans": moved(turns.spans)})

    tiers = tuple(tier.model_copy(update={"turns": among(tier.turns)}) for tier in made.tiers)
    return replace(basis, context=replace(made, as_of_seq=seq, tiers=tiers, state=moved(made.state)))
