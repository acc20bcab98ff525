"""Requests an answer: appends the user's turn and the request for its answer as one atomic batch."""

import uuid
from dataclasses import dataclass
from uuid import UUID

from uuid_utils.compat import uuid7

from turnlog.events.contracts import AnswerRequested, Event, TurnRecorded
from turnlog.events.local_time import now_there
from turnlog.events.log import Log
from turnlog.events.texts import storable

SOURCE = "turnlog/chat"
FAILURE = "failure-1"  # the part in the id of the event that records a failed answer
AGENT = "agent"  # the name of the consumer that answers, used in its dead letters


@dataclass(frozen=True, slots=True)
class Question:
    tenant: str
    thread: str
    text: str
    user: str | None = None
    model: str | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionEvents:
    """The turn and the request. Their ids are known before the append, so that a subscription can begin first."""

    turn: Event
    request: Event


def question_events(question: Question, turn_id: UUID | None = None) -> QuestionEvents:
    """Returns the question's turn and the request for its answer. turn_id: a repeated question with the same id is
    stored once."""
    now = now_there()
    about = {"source": SOURCE, "tenant": question.tenant, "thread": question.thread, "user": question.user}
    turn = Event(
        id=turn_id or uuid7(), time=now, data=TurnRecorded(role="user", content=storable(question.text)), **about
    )
    request = Event(
        id=answer_id(turn.id, "request") if turn_id else uuid7(),
        time=now,
        causation=turn.id,
        data=AnswerRequested(turn_id=turn.id, model=question.model, agent=question.agent),
        **about,
    )
    return QuestionEvents(turn, request)


async def ask(log: Log, asked: QuestionEvents, expected: int | None = None) -> int:
    """Appends turn and request; returns the request's sequence. expected: the thread's version. Raises
    WrongExpectedVersion."""
    return (await log.append_many([asked.turn, asked.request], expected))[-1].seq


def answer_id(request: UUID, part: str) -> UUID:
    """Returns an id derived from the request, so that a repeated answer has the same event ids."""
    return uuid.uuid5(request, part)
