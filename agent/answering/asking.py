"""Asks turnlog's agent a question; yields the pieces of the answer as they arrive, then the recorded answer from the
log."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from turnlog.agent.answering.fallback import Locale as Locale
from turnlog.agent.answering.fallback import category_of, ended_early, fallback_of
from turnlog.agent.answering.pieces import AgentSwitched as AgentSwitched
from turnlog.agent.answering.pieces import PhaseChanged as PhaseChanged
from turnlog.agent.answering.pieces import PlanShown as PlanShown
from turnlog.agent.answering.pieces import ProgressStep, Shown, piece_of, piece_of_event
from turnlog.agent.answering.pieces import Restarted as Restarted
from turnlog.agent.answering.pieces import Seen as Seen
from turnlog.agent.answering.pieces import Solved as Solved
from turnlog.agent.answering.pieces import Text as Text
from turnlog.agent.answering.pieces import ToolReturned as ToolReturned
from turnlog.agent.answering.pieces import ToolUsed as ToolUsed
from turnlog.agent.answering.request import AGENT, FAILURE, Question, answer_id, question_events
from turnlog.agent.answering.request import ask as append_question
from turnlog.agent.answering.single_agent import check_answers
from turnlog.agent.answering.thread_turns import in_turn
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.conversations.ownership import append_as_owner, check_not_deleted, own_thread
from turnlog.agent.models.errors import ModelTimedOut
from turnlog.agent.models.language import is_chinese
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import REMOVALS, AnswerRequested, Event, UsageMetered
from turnlog.events.errors import InvalidEvent, NotFound, TurnlogError
from turnlog.events.stored import recorded
from turnlog.events.subjects import check_place, progress_subject
from turnlog.projectors.engine.parking import ThreadParked, first_parked, refuse_parked
from turnlog.projectors.models.conversation.message import message_by_event
from turnlog.projectors.models.conversation.speech import OFFLINE_MODEL

MORE_S = 10.0  # added to the time limit of an answer, for pick-up and recording
LOOK_AGAIN_S = 1.0
RUN_STEPS = ("run_planned", "run_tool_called", "run_tool_answered", "run_delegated", "run_solved")
Steps = asyncio.Queue[ProgressStep | None]  # None: look for the answer on the log


class NoAnswer(TurnlogError):
    """The model could not answer; the question stays on the log.

    cause: the code of the error, if known. category: the kind of failure. retry_after_s: the time after which to ask
    again.
    """

    code = "no-answer"

    def __init__(self, message: str, cause: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.cause, self.category = cause, category_of(cause or self.code)
        self.retry_after_s = retry_after_s

    def said(self, locale: Locale) -> str:
        """Returns the message for a person."""
        return fallback_of(self, locale).message


@dataclass(frozen=True, slots=True)
class QuestionStored:
    """The question is on the log. seq: the sequence of the request for its answer, for `follow`. thread: the id of its
    conversation."""

    seq: int
    thread: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer as recorded on the log. finish_reason: why the model ended, such as `length`, if the stream said so.
    suggestions: next questions, if a team answered."""

    thread: str
    question_id: UUID
    answer_id: UUID
    seq: int
    model: str | None
    answer: str
    finish_reason: str | None = None
    suggestions: tuple[str, ...] = ()

    @property
    def is_offline(self) -> bool:
        """True if the answer only quotes earlier turns, because no language model is configured."""
        return self.model == OFFLINE_MODEL

    def note(self, locale: Locale) -> str | None:
        """Returns the note to show after an answer that turnlog ended early; None after a whole answer."""
        return ended_early(self.finish_reason, locale)


AnswerPiece = QuestionStored | Shown | Answered


async def ask(
    runtime: Runtime,
    tenant: str,
    thread: str,
    text: str,
    *,
    user: str | None = None,
    model: str | None = None,
    agent: str | None = None,
    turn_id: UUID | None = None,
    admission: AbstractAsyncContextManager[None] | None = None,
) -> AsyncGenerator[AnswerPiece]:
    """Appends the question, then yields the answer: `QuestionStored`, text and tools as they arrive, and finally
    `Answered`.

    The question is appended after the answers that were requested earlier in the thread. thread: its id or, with a
    user, also the user's name for it; a thread without events then belongs to the user. admission: the throttle's
    context, entered before the question is appended.

    Needs a running agent (consumers.roles, or `turnlog up`). If the caller stops early, the answer is still recorded.
    agent: the type of the agent that answers; None means the choice of the server's team, or without a team the default
    agent. turn_id: the id of the question's turn; a repeated question with the same id is asked once. Raises NoAnswer,
    InvalidEvent for a blank question, AgentDisabled, NotFound for an unknown agent, or for a conversation that is
    deleted, even while its answer is made, Forbidden for a participant who may only read, InvalidToken, TooManyWaiting,
    LogUnavailable.
    """
    _check(tenant, thread, text, user)
    await check_answers(runtime, tenant, agent)
    where = (runtime, tenant)
    may: dict[str, Any] = {"or_nobody": True, "least": "member"}
    if user is None:
        await check_not_deleted(runtime, tenant, thread)
    else:
        name, thread = thread, await own_thread(*where, thread, user, begins=True, **may)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(in_turn(runtime, tenant, thread, runtime.settings.answer_timeout_s))
        await stack.enter_async_context(admission or contextlib.nullcontext())

        async def append(thread: str, expected: int | None = None) -> tuple[int, Event, Steps]:
            asked = question_events(Question(tenant, thread, text, user, model, agent), turn_id)
            arrived = await stack.enter_async_context(_progress(runtime, asked.request))
            return await append_question(runtime.log, asked, expected), asked.request, arrived

        if user is None:
            seq, request, arrived = await append(thread)
        else:
            seq, request, arrived = await append_as_owner(*where, name, user, append, **may)
        yield QuestionStored(seq, request.thread)
        async for piece in _follow(runtime, request, seq, arrived):
            yield piece


async def follow(runtime: Runtime, tenant: str, thread: str, seq: int) -> AsyncGenerator[AnswerPiece]:
    """Yields `QuestionStored` and the remaining pieces of the answer to an earlier question, at least `Answered`. seq:
    from `QuestionStored`. Raises NotFound if the thread has no such request or is deleted meanwhile, NoAnswer.
    """
    request = await question_at(runtime, tenant, thread, seq)
    async with _progress(runtime, request) as arrived:
        await runtime.log.nc.flush()  # waits until the subscription has begun
        arrived.put_nowait(None)  # the answer may already be recorded
        yield QuestionStored(seq, thread)
        async for piece in _follow(runtime, request, seq, arrived):
            yield piece


async def question_at(runtime: Runtime, tenant: str, thread: str, seq: int) -> Event:
    """Returns the thread's request for an answer at a sequence of the log. Raises NotFound if there is none."""
    try:
        request = recorded(await runtime.log.stored(seq)).event
    except InvalidEvent as error:
        raise NotFound(f"there is no question at sequence {seq}") from error
    if (request.tenant, request.thread) != (tenant, thread) or not isinstance(request.data, AnswerRequested):
        raise NotFound(f"thread {thread!r} has no question at sequence {seq}")
    return request


@contextlib.asynccontextmanager
async def _progress(runtime: Runtime, request: Event) -> AsyncIterator[Steps]:
    """Yields a queue with the steps of the request's answer, from the next NATS message on; messages of a connection
    are handled in order. Malformed messages are ignored."""
    arrived = Steps()

    async def on_message(message: Any) -> None:
        with contextlib.suppress(ValidationError):
            arrived.put_nowait(ProgressStep.model_validate_json(message.data))

    subject = progress_subject(request.tenant, request.thread, str(request.id))
    watching = await runtime.log.nc.subscribe(subject, cb=on_message)
    try:
        yield arrived
    finally:
        await watching.unsubscribe()


def _check(tenant: str, thread: str, text: str, user: str | None) -> None:
    check_place(tenant, thread, user)
    if not text.strip():
        raise InvalidEvent("the question is blank, so there is nothing to answer")


async def _follow(runtime: Runtime, request: Event, seq: int, arrived: Steps) -> AsyncGenerator[AnswerPiece]:
    """Yields the pieces of the request's answer. Raises NoAnswer, and NotFound if the conversation is deleted in the
    meantime."""
    try:
        async for piece in _pieces(runtime, request, seq, arrived):
            yield piece
    except NoAnswer as error:
        if await runtime.log.thread_head_of(request.tenant, request.thread, REMOVALS) > seq:
            raise NotFound("the conversation was deleted before the answer came") from error
        raise


async def _pieces(runtime: Runtime, request: Event, seq: int, arrived: Steps) -> AsyncGenerator[AnswerPiece]:
    """Yields the pieces of the answer as they arrive. Progress messages may be lost, so the log is checked for the
    answer from time to time."""
    shown = ""  # text since the last tool, because the recorded answer begins there
    began, end, is_heard = False, None, False
    loop = asyncio.get_running_loop()
    patience_s = runtime.settings.answer_timeout_s + MORE_S
    deadline = loop.time() + patience_s
    while loop.time() < deadline:
        step = await _next(arrived)
        if step is not None and step.kind == "error":
            raise NoAnswer(step.text, step.code, step.retry_after_s)
        if step is None or step.kind == "end":
            if answered := await _recorded(runtime, request, seq):
                steps, solved = ([], end) if end or step else await _run_on_log(runtime, request, seq, answered.answer)
                for late in (*([] if is_heard else steps), *_missing(shown, answered.answer)):
                    yield late
                if solved and not end:
                    yield solved
                reason = step.finish_reason if step else None
                yield replace(answered, finish_reason=reason, suggestions=solved.suggestions if solved else ())
                return
            continue
        piece = piece_of(step)
        is_heard = True
        match piece:
            case Text(text):
                began, shown = True, shown + text
            case ToolUsed():
                shown = ""
            case Solved():
                end = piece
            case Restarted():
                if not began:
                    continue
                began, shown = False, ""
        if piece is not None:
            yield piece
    raise NoAnswer(f"no answer came within {patience_s:g} s; is an agent running (`turnlog up`)?", ModelTimedOut.code)


async def _run_on_log(runtime: Runtime, request: Event, seq: int, answer: str) -> tuple[Sequence[Shown], Solved | None]:
    """Returns the steps of the run and its last event, if a team answered the request.

    They are for a caller who repeats the request after the answer, and so did not receive them while it ran.
    """
    steps, solved = list[Shown](), None
    async for stored in runtime.log.read_thread(request.tenant, request.thread, seq, types=RUN_STEPS):
        if getattr(stored.event.data, "run_id", None) == request.id:
            piece = piece_of_event(stored.event.data, answer)
            if isinstance(piece, Solved):
                solved = piece
            elif piece is not None:
                steps.append(piece)
    return steps, solved


def _missing(shown: str, answer: str) -> list[AnswerPiece]:
    """Returns the pieces that complete the shown text: the rest of the answer, or a restart with the whole answer if
    the shown text is not its beginning.
    """
    if answer.strip() == shown.strip():
        return []
    return [Text(answer[len(shown) :])] if answer.startswith(shown) else [Restarted(), Text(answer)]


async def _next(arrived: Steps) -> ProgressStep | None:
    try:
        async with asyncio.timeout(LOOK_AGAIN_S):
            return await arrived.get()
    except TimeoutError:
        return None


async def _recorded(runtime: Runtime, request: Event, seq: int) -> Answered | None:
    """Returns the answer if it is recorded; None if it may still come. Raises NoAnswer if it cannot be shown, or if an
    event on the log says why the question failed."""
    place = (request.tenant, request.thread)
    head = await runtime.wait_until_thread_projected(*place, ("messages",))
    async with runtime.pool.connection() as conn:
        message = None
        if head > seq:  # otherwise nothing followed the request
            message = await message_by_event(conn, *place, answer_id(request.id, "answer"))
        if message is None:
            try:
                refuse_parked(request.thread, await first_parked(conn, ("messages",), *place))
            except ThreadParked as parked:
                raise NoAnswer(str(parked), parked.code) from parked
            if given_up := await first_parked(conn, (AGENT,), *place, since=seq):
                raise NoAnswer(f"the agent failed on the question ({given_up}); `turnlog dead-letters list` shows it")
    if message is None and head > seq:
        await _check_failure(runtime, request, seq)
    if message is None or request.causation is None:
        return None
    return Answered(
        request.thread,
        request.causation,
        message.event_id,
        message.seq,
        message.model,
        content_text(message.content),
    )


async def _check_failure(runtime: Runtime, request: Event, seq: int) -> None:
    """Raises NoAnswer if the agent recorded a failure."""
    failure, place = answer_id(request.id, FAILURE), (request.tenant, request.thread)
    async for stored in runtime.log.read_thread(*place, seq, types=("usage_metered",)):
        if stored.event.id == failure and isinstance(stored.event.data, UsageMetered):
            cause, _, problem = (stored.event.data.error or "").partition(": ")
            raise NoAnswer(problem, cause)


def locale_of_text(text: str) -> Locale:
    """Returns the language in which to answer a question."""
    return "zh" if is_chinese(text) else "en"


class Continued:
    """The text of an answer for an interface that cannot retract shown text.

    After a restart, it withholds new text as long as the text repeats the shown text, and continues from there. If the
    text differs, it is shown again from the beginning, after `notice`.
    """

    def __init__(self, notice: str) -> None:
        self._notice, self._shown = notice, ""
        self._again: str | None = None

    def said(self, piece: AnswerPiece) -> str:
        """Returns the text to show now."""
        match piece:
            case Text(text):
                return self._add(text)
            case Restarted():
                self._again = ""
            case ToolUsed():  # text after a tool is separate
                self._shown, self._again = "", None
            case Answered():  # after a restart, the text may be a prefix of the first one
                again, self._again = self._again, None
                return "" if again is None or again == self._shown else self._notice + again
        return ""

    def _add(self, text: str) -> str:
        if self._again is None:
            self._shown += text
            return text
        self._again += text
        if self._shown.startswith(self._again):
            return ""
        known, self._shown, self._again = self._shown, self._again, None
        return self._shown.removeprefix(known) if self._shown.startswith(known) else self._notice + self._shown
