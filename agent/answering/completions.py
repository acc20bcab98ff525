"""Makes a completion with memory: stores the caller's new messages, builds their context, asks the model with the
caller's own tools, and records the answer."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from uuid import UUID, uuid5

import psycopg
from psycopg_pool import PoolTimeout
from uuid_utils.compat import uuid7

from turnlog.agent.access.idempotency import last_try, note_try
from turnlog.agent.access.identity import Role
from turnlog.agent.access.throttle.admission import admitted
from turnlog.agent.access.throttle.fair_share import in_share
from turnlog.agent.answering.client_tasks import ends_with_a_prompt
from turnlog.agent.answering.context import AnswerBasis, context_of
from turnlog.agent.answering.pieces import Round
from turnlog.agent.answering.pieces import Text as Text
from turnlog.agent.answering.record import Author, answer_of, record
from turnlog.agent.answering.run import ToolLoop, run
from turnlog.agent.answering.thread_turns import first_of, in_turn, tell_waiting
from turnlog.agent.answering.turns import SOURCE as SOURCE_OF_TURNS
from turnlog.agent.answering.turns import Added, add_turns, turn_of
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.context.wire import with_tool_calls
from turnlog.agent.conversations.forks import fork_thread
from turnlog.agent.conversations.labels import label_thread
from turnlog.agent.conversations.ownership import append_as_owner
from turnlog.agent.conversations.transcript_matching import (
    History,
    RequestPlace,
    Wire,
    place_behind,
    place_of,
    split_prompt,
    with_own_last,
)
from turnlog.agent.models import observed
from turnlog.agent.models.protocol import CallPiece, ChatRequest, Completion, asker_of
from turnlog.agent.runtime import Runtime
from turnlog.events import tracing
from turnlog.events.contracts import Event, TurnRecorded
from turnlog.events.errors import InvalidEvent, NotFound, TurnlogError, cause
from turnlog.events.stored import recorded
from turnlog.events.subjects import check_place, memory_thread
from turnlog.events.texts import storable
from turnlog.projectors.models.conversation.message import message_by_event

AGENT, SOURCE = "openai", "turnlog/openai"
MemoryMode = Literal["off", "read", "full"]
logger = logging.getLogger("turnlog.answers")


@dataclass(frozen=True, slots=True)
class Person:
    """The person who asks. The tenant and user are those of the API key or token."""

    tenant: str
    user: str
    role: Role


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A completion to make. messages: new messages only or the complete history, in the OpenAI chat format.

    thread: the client's name for the thread. history: see place_of. behind: id of the answer, an event of `thread`,
    that the new messages follow. memory: "read" stores nothing, "off" uses the model alone. is_task: the messages are a
    self-contained prompt of the client program; no context is added unless they follow an earlier answer. chat: the
    fields of the model request besides the messages. id: the id of the answer; a failed request that is sent again with
    the same id stores its messages once. knows_prompts: messages written by the client program do not count as the
    user's.
    """

    messages: Sequence[Wire]
    chat: ChatRequest
    thread: str | None = None
    history: History = "some"
    behind: UUID | None = None
    memory: MemoryMode = "full"
    is_task: bool = False
    id: UUID = field(default_factory=uuid7)
    knows_prompts: bool = False

    @property
    def is_alone(self) -> bool:
        """Returns whether the model gets only the request's messages."""
        is_whole = self.behind is None and self.history != "none"
        return self.memory == "off" or (self.is_task and is_whole)


@dataclass(frozen=True, slots=True)
class AnswerIds:
    """The ids of an answer, yielded before the model is called. thread: the conversation that is continued or read;
    None if there is none. receipt: None if nothing is stored."""

    id: UUID
    thread: str | None
    receipt: UUID | None


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A step of an agent's run, as text for people who follow it."""

    text: str


CompletionPiece = AnswerIds | Text | CallPiece | Reasoned | Completion


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The messages and thread of a completion. messages: those for the model. basis: the basis of the answer's receipt.
    begins: whether the conversation may still lack a label."""

    messages: Sequence[Wire]
    thread: str | None = None
    basis: AnswerBasis | None = None
    begins: bool = False


async def complete(runtime: Runtime, person: Person, wanted: CompletionRequest) -> AsyncGenerator[CompletionPiece]:
    """Yields `AnswerIds` first, then text and pieces of tool calls as they arrive, and the complete `Completion` once
    it is recorded.

    The new messages are stored before the model is called, and after earlier answers of the thread. A second request
    for the turn that is being answered does not wait; its answer goes on a fork. Raises NotFound, InvalidEvent,
    InvalidToken, WindowTooSmall, the throttle's errors, ModelError.
    """
    ends_at = asyncio.get_running_loop().time() + runtime.settings.answer_timeout_s
    chat = replace(wanted.chat, ends_at=ends_at, asker=asker_of(person.tenant, person.user))
    wanted = replace(wanted, messages=with_tool_calls(storable(wanted.messages)), chat=chat)
    check_place(person.tenant, wanted.thread, person.user)
    if not split_prompt(wanted.messages)[1]:
        raise InvalidEvent("there is no message to answer; send at least one user message")
    async with contextlib.AsyncExitStack() as stack:
        place = RequestPlace(None, wanted.messages) if wanted.is_alone else await _place(runtime, person, wanted)
        if wanted.memory == "full" and place.thread is not None and place.after is None:
            place = await stack.enter_async_context(_in_turn(runtime, person, wanted, place.thread, ends_at))
        async with in_share(runtime, person.tenant, person.user, "asks"):
            throttled = admitted(runtime, person.tenant, person.user, person.role, place.thread, AGENT)
            await stack.enter_async_context(throttled)
        stack.enter_context(observed.answer(AGENT, person.tenant, place.thread, tracing.traceparent()))
        prepared = await _prepared(runtime, person, wanted, place)
        receipt = uuid5(wanted.id, "receipt") if prepared.basis else None
        yield AnswerIds(wanted.id, prepared.thread, receipt)
        request = replace(wanted.chat, messages=prepared.messages)
        pieces = await stack.enter_async_context(contextlib.aclosing(run(runtime.models.chat, ToolLoop(request))))
        async for piece in pieces:
            match piece:
                case Text() | CallPiece():
                    yield piece
                case Round():
                    await _record(runtime, person, wanted, prepared, piece)
                    if prepared.begins and prepared.thread is not None:
                        await label_first(runtime, person.tenant, prepared.thread)
                    yield piece.completion


async def complete_once(
    runtime: Runtime, person: Person, wanted: CompletionRequest, request: bytes, is_retry: bool
) -> AsyncGenerator[CompletionPiece]:
    """Yields the pieces of `complete`. A retry waits for the previous attempt, in any process, and yields its answer.
    If that attempt failed or was killed, the retry uses its id, so that the question is stored once.

    request: the SHA-256 of the request that a client library repeats. Also raises TooManyWaiting after the time limit
    of an answer.
    """
    where, name = (runtime, person.tenant), f"tries/{request.hex()}"
    patience_s = runtime.settings.answer_timeout_s
    async with in_turn(*where, name, patience_s) if is_retry else first_of(*where, name):
        if is_retry and (before := await last_try(*where, request)) is not None:
            if (made := await _recorded(runtime, person.tenant, *before)) is not None:
                yield AnswerIds(*before, uuid5(before[0], "receipt"))
                yield Text(made.text)
                for index, call in enumerate(made.tool_calls):
                    yield CallPiece(index, call.id, call.name, call.arguments)
                yield made
                return
            wanted = replace(wanted, id=before[0], thread=before[1])
        async with contextlib.aclosing(complete(runtime, person, wanted)) as pieces:
            async for piece in pieces:
                if isinstance(piece, AnswerIds) and piece.thread is not None:
                    try:
                        await note_try(*where, person.user, request, piece.id, piece.thread)
                    except (psycopg.OperationalError, PoolTimeout) as error:
                        logger.warning("a retry in another process would ask again: %s", cause(error))
                yield piece


async def _recorded(runtime: Runtime, tenant: str, answer: UUID, thread: str) -> Completion | None:
    """Returns the answer as recorded on the log, without its cost and finish reason."""
    async with runtime.reading("messages", of=(tenant, thread)) as conn:
        turn = await message_by_event(conn, tenant, thread, answer)
    if turn is None:
        return None
    said = recorded(await runtime.log.stored(turn.seq)).event.data
    assert isinstance(said, TurnRecorded)
    tokens = (said.tokens_in or 0, said.tokens_out or 0)
    text = content_text(turn.content)
    return Completion(text, said.tool_calls, *tokens, 0.0, said.model or "", "", said.latency_ms or 0.0)


@contextlib.asynccontextmanager
async def _in_turn(
    runtime: Runtime, person: Person, wanted: CompletionRequest, thread: str, ends_at: float
) -> AsyncIterator[RequestPlace]:
    """Yields the request's place in the thread once the earlier answers are made, or at once if the request continues
    on a fork."""

    async def fork() -> RequestPlace | None:
        place = await _place(runtime, person, wanted)
        if place.after is None and not place.new:  # another request answers this turn
            return replace(place, after=place.end)
        return place if place.after is not None else None

    patience_s = ends_at - asyncio.get_running_loop().time()
    async with in_turn(runtime, person.tenant, thread, patience_s, fork) as forked:
        yield forked or await _place(runtime, person, wanted)


async def _place(runtime: Runtime, person: Person, wanted: CompletionRequest) -> RequestPlace:
    """Returns the request's place in a conversation. Raises NotFound, TooManyWaiting."""
    async with in_share(runtime, person.tenant, person.user, "asks"):
        return await _found_place(runtime, person, wanted)


async def _found_place(runtime: Runtime, person: Person, wanted: CompletionRequest) -> RequestPlace:
    _, messages = split_prompt(wanted.messages)
    where = (runtime, person.tenant, person.user)
    if wanted.behind is None or wanted.thread is None:
        return await place_of(*where, wanted.thread, messages, history=wanted.history, claims=wanted.memory == "full")
    async with runtime.reading("messages", of=(person.tenant, wanted.thread)) as conn:
        answer = await message_by_event(conn, person.tenant, wanted.thread, wanted.behind)
    if answer is None:
        raise NotFound("the previous response does not exist")
    return await place_behind(*where, wanted.thread, answer.seq, messages)


async def _prepared(runtime: Runtime, person: Person, wanted: CompletionRequest, place: RequestPlace) -> _Prepared:
    if wanted.is_alone:
        return _Prepared(wanted.messages)
    return await (_continued if wanted.memory == "full" else _looked_up)(runtime, person, wanted, place)


async def _continued(runtime: Runtime, person: Person, wanted: CompletionRequest, place: RequestPlace) -> _Prepared:
    """Stores the new messages, on a fork if the conversation continued differently, and builds the context."""
    prompt, messages = split_prompt(wanted.messages)
    known = len(messages) - len(place.new)
    turns = [
        replace(
            turn_of(message),
            id=uuid5(wanted.id, f"message {at}"),
            origin="program" if wanted.knows_prompts and ends_with_a_prompt(message) else None,
        )
        for at, message in enumerate(place.new, known)
    ]
    thread = place.thread or str(uuid5(wanted.id, "thread"))
    if place.after is not None:
        thread = (await fork_thread(runtime, person.tenant, thread, place.after)).thread
    through = None if place.after is not None else place.end
    if turns:

        async def append(thread: str, expected: int | None) -> tuple[str, Added]:
            where = (runtime, person.tenant, thread)
            return thread, await add_turns(*where, turns, user=person.user, expected=expected)

        thread, added = await append_as_owner(runtime, person.tenant, thread, person.user, append)
        through = added.version
        await tell_waiting(runtime, person.tenant, thread)
    built = await context_of(
        runtime,
        person.tenant,
        thread,
        user=person.user,
        model=wanted.chat.model,
        system_prompt=prompt,
        tools=[dict(tool) for tool in wanted.chat.tools],
        answer_tokens=wanted.chat.max_tokens,
        through=through,
    )
    begins = place.after is None and place.end is None
    return _Prepared(with_own_last(list(built.context.messages), messages), thread, built.receipt, begins)


async def label_first(runtime: Runtime, tenant: str, thread: str) -> None:
    """Labels a conversation without a label. Its answer is already stored, so an error is only logged."""
    try:
        await label_thread(runtime, tenant, thread)
    except (TurnlogError, psycopg.OperationalError, PoolTimeout) as error:
        logger.warning("the conversation %s has no label: %s", thread, cause(error))


async def _looked_up(runtime: Runtime, person: Person, wanted: CompletionRequest, place: RequestPlace) -> _Prepared:
    """Returns the messages of a completion, with stored turns that the client did not send and the person's memories;
    stores nothing."""
    prompt, messages = split_prompt(wanted.messages)
    question = content_text(messages[-1].get("content") or "") if messages[-1].get("role") == "user" else None
    is_alone = len(messages) == 1 and question is not None
    has_past = place.thread is not None and len(place.new) == len(messages)
    thread = place.thread if has_past and place.thread else str(uuid7())
    query = question if is_alone or not has_past else None
    try:
        built = await context_of(
            runtime,
            person.tenant,
            thread,
            query=query,
            user=person.user,
            model=wanted.chat.model,
            system_prompt=prompt,
            answer_tokens=wanted.chat.max_tokens,
        )
    except NotFound:
        return _Prepared(wanted.messages, place.thread)
    known = list(built.context.messages)
    if is_alone:
        return _Prepared(with_own_last(known, messages), place.thread)
    if has_past:
        return _Prepared([*known, *messages], place.thread)
    head, notes = (known[:1], known[1:-1]) if known[0]["role"] == "system" else ([], known[:-1])
    return _Prepared([*head, *messages[:-1], *notes, messages[-1]], place.thread)


async def _record(
    runtime: Runtime, person: Person, wanted: CompletionRequest, prepared: _Prepared, made: Round
) -> None:
    """Records the answer with its receipt and usage; if nothing is to be stored, records only the usage, for the quota.

    Nothing is stored in a conversation that was deleted in the meantime.
    """
    completion = made.completion
    if prepared.basis is not None and (completion.text or completion.tool_calls):
        author = Author(SOURCE_OF_TURNS, person.tenant, prepared.basis.thread, person.user)
        ids = {"answer": wanted.id, "receipt": uuid5(wanted.id, "receipt"), "usage-0": uuid5(wanted.id, "usage")}
        with contextlib.suppress(NotFound):
            await record(runtime, answer_of(author, prepared.basis, [made], AGENT, ids.__getitem__))
            return
    about = {"source": SOURCE, "tenant": person.tenant, "thread": memory_thread(person.user), "user": person.user}
    await runtime.log.append(Event(**about, data=completion.metered(AGENT)))
