"""Answers requests: waits until the turn is projected, builds the context, runs the tool loop, and stores answer,
receipt and usage in one batch.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from turnlog.agent.answering.cancelling import AnswerCancelled, said_so_far, until_cancelled
from turnlog.agent.answering.pieces import Progress, Round
from turnlog.agent.answering.prepare import READS, ContextRequest, Prepared, context_connection, prepare
from turnlog.agent.answering.recall_tool import SCHEMA, MemoriesOf, ToolResult, run_tool
from turnlog.agent.answering.record import Answer, Author, answer_of, record
from turnlog.agent.answering.request import FAILURE, answer_id
from turnlog.agent.answering.run import ToolLoop, Tools, check_not_empty, run
from turnlog.agent.answering.single_agent import AgentDisabled, answering_agent
from turnlog.agent.context import WindowTooSmall
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.conversations.locks import SharedLocks
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models import observed
from turnlog.agent.models.errors import EmptyAnswer, ModelError
from turnlog.agent.models.language import is_chinese
from turnlog.agent.models.protocol import ChatRequest, Usage, asker_of, failed_usage
from turnlog.agent.recall.search import recall_of
from turnlog.agent.retry_later import RetryLater
from turnlog.agent.runtime import Runtime
from turnlog.agent.team.configured import ServerTeam, check_secrets, choose, entry_agent, server_team, team_of_tenant
from turnlog.agent.team.recording import failed_event
from turnlog.agent.team.teams import Agent
from turnlog.consumers.workers.durable_consumer import Delivery
from turnlog.consumers.workers.team_answers import TeamRun
from turnlog.events.contracts import AnswerRequested, Event, ToolCall
from turnlog.events.errors import EventTooLarge, GapInLog, InvalidEvent, LogFull, LogUnavailable, NotFound, TurnlogError
from turnlog.events.log import Log
from turnlog.events.publish import Key
from turnlog.events.stored import recorded
from turnlog.events.subjects import check_conversation, memory_thread, progress_subject
from turnlog.projectors.engine.duplicates import first_seqs
from turnlog.projectors.engine.lag import READ_WHILE_REBUILT, wait_for
from turnlog.projectors.engine.locks import LockFor
from turnlog.projectors.engine.parking import ThreadParked, first_parked, refuse_parked
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.message import Message, message_by_event
from turnlog.projectors.models.memories.lookup import preferences_set
from turnlog.projectors.models.operations.agents import AgentRow

logger = logging.getLogger("turnlog.consumers")
SOURCE = "turnlog/agent"
# Errors that end a request: the model's client has already retried for as long as allowed. The person is told and may
# ask again.
FINAL = (
    ModelError,
    AnswerCancelled,
    NotFound,
    AgentDisabled,
    ThreadParked,
    WindowTooSmall,
    InvalidEvent,
    EventTooLarge,
)
RETRY_S = 5.0
BUSY_S = 2.0
PATIENT = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a request on the log: answered, failed, or neither yet."""

    answered: bool
    failed: bool


async def outcome(log: Log, request: Event, seq: int) -> Outcome:
    """Reads the outcome of a request from the ids of the thread's later events. Raises GapInLog, LogUnavailable."""
    if await log.thread_head(request.tenant, request.thread) == seq:
        return Outcome(False, False)
    stored = await log.stored_ids(request.tenant, request.thread, seq)
    return Outcome(answer_id(request.id, "answer") in stored, answer_id(request.id, FAILURE) in stored)


class AgentConsumer:
    """Answers requests; its DurableConsumer calls work() with the requests of one thread."""

    def __init__(self, runtime: Runtime) -> None:
        """Creates the consumer. Raises InvalidTeam if an environment variable that a tool server needs is not set."""
        if (server := server_team(runtime)) is not None:
            check_secrets(server.team)
        self._runtime, self._models = runtime, runtime.models
        self._memories, self._locks = Memories(runtime.log, runtime.pool), SharedLocks(runtime.pool)

    async def work(self, deliveries: list[Delivery]) -> None:
        for delivery in sorted(deliveries, key=lambda d: d.seq):
            try:
                event = recorded(await self._runtime.log.stored(delivery.seq)).event
            except (InvalidEvent, NotFound):
                continue  # the event was erased, or the projectors park it
            await self._answer(event, delivery)

    async def _answer(self, request: Event, delivery: Delivery) -> None:
        """Makes the answer unless the log already contains it or its failure. Raises RetryLater while another worker is
        making it.

        If a worker's progress acks are late, its request is delivered to a second worker; without the lock both would
        pay for a model's answer, and one answer would be discarded. After PATIENT attempts the second worker continues
        without the lock, because the holder may be frozen. A holder that loses its connection continues too, because
        the log is read again before an answer is appended.
        """
        place = (request.tenant, request.thread)
        progress = Progress(self._runtime.log.nc, progress_subject(*place, str(request.id)), delivery.attempt)
        if not await self._is_first(request, delivery):
            return  # the same request was published again much later, and counts only once
        async with self._locks.lock(LockFor.ANSWER, f"answer/{'/'.join(place)}/{request.id}") as is_ours:
            if not is_ours and delivery.attempt <= PATIENT:
                raise RetryLater(BUSY_S, f"another worker is answering request {request.id}")
            before = await outcome(self._runtime.log, request, delivery.seq)
            if before.answered or before.failed:  # redelivered; the asker reads the result from the log
                await progress.tell("end")
                return
            run_end = list[Event]()
            try:
                server = server_team(self._runtime)
                team = None if server is None else server.team.name
                traced = observed.answer(self._agent_of(request), *place, request.traceparent, _is_final, team)
                with traced as answered_by:
                    await self._make(request, delivery.seq, progress, answered_by, run_end)
            except FINAL as error:
                await self._failed(request, progress, error, run_end)

    async def _is_first(self, request: Event, delivery: Delivery) -> bool:
        """Returns whether this event is the first with its id, after waiting until it is projected. Raises
        NotProjectedInTime."""
        async with context_connection(self._runtime) as conn:
            await wait_for(conn, READS, delivery.partition, delivery.seq, without=READ_WHILE_REBUILT)
            key = Key.of(request)
            return (await first_seqs(conn, [delivery.partition], [key])).get(key) == delivery.seq

    async def _make(
        self,
        request: Event,
        seq: int,
        progress: Progress,
        answered_by: Callable[[str], None],
        run_end: list[Event],
    ) -> None:
        """Prepares, runs and records the answer and publishes its progress.

        answered_by: called with the agent that made a team's answer. run_end: receives the event that ends a team's
        failed run, to be recorded with the failure.
        """
        # The time limit of the answer begins when a worker starts it, even if the request has waited long for a worker.
        ends_at = asyncio.get_running_loop().time() + self._runtime.settings.answer_timeout_s
        check_conversation(request.thread)  # anyone may publish a request on any thread
        await progress.tell("start")
        await self._models.embedder.ready()
        data = request.data
        assert isinstance(data, AnswerRequested)
        server = server_team(self._runtime)
        if server is not None:
            await self._make_by_team(server, request, data, seq, progress, ends_at, answered_by, run_end)
            return
        async with context_connection(self._runtime) as conn:
            agent = await answering_agent(conn, request.tenant, data.agent)
            await restored_if_archived(self._runtime, conn, request.tenant, request.thread)
            asked = await _asked(conn, request, data)
            model = data.model or agent.model
            prepared = await self._prepared(conn, request, seq, asked, agent, model)
        await progress.show(prepared.seen)
        asker = asker_of(request.tenant, request.user or request.thread)
        chat = ChatRequest(
            prepared.context.messages,
            (),
            model,
            agent.temperature,
            agent.max_tokens,
            restart=True,
            ends_at=ends_at,
            asker=asker,
        )
        tools = Tools([SCHEMA], functools.partial(self._use_tool, request, seq, prepared))
        rounds: list[Round] = []
        try:
            made = contextlib.aclosing(run(self._models.chat, ToolLoop(chat, tools)))
            async with until_cancelled(self._runtime.log.nc, request), made as pieces:
                async for piece in pieces:
                    await progress.show(piece)
                    if isinstance(piece, Round):
                        check_not_empty(piece.completion)
                        rounds.append(piece)
        except AnswerCancelled:
            completion = said_so_far(self._runtime, prepared, progress, model)
            if completion is None:
                raise
            rounds.append(Round(completion))
        await self._finish(request, data, seq, progress, prepared, rounds)

    async def _make_by_team(
        self,
        server: ServerTeam,
        request: Event,
        data: AnswerRequested,
        seq: int,
        progress: Progress,
        ends_at: float,
        answered_by: Callable[[str], None],
        run_end: list[Event],
    ) -> None:
        """Lets the team's agents make the answer, each with its own context."""
        place = (request.tenant, request.thread)
        async with context_connection(self._runtime) as conn:
            server = await team_of_tenant(conn, server, request.tenant, data.model)
            await restored_if_archived(self._runtime, conn, *place)
            asked = await _asked(conn, request, data)
            wanted = await preferences_set(conn, request.tenant, memory_thread(request.user or request.thread))
        question = content_text(asked.content)
        chosen = choose(server.team, question, data.agent)
        locale = wanted.language or ("zh" if is_chinese(question) else "en")

        async def prepared(agent: Agent, notes: Sequence[str]) -> Prepared:
            row = AgentRow(agent.type, True, agent.prompt, agent.temperature, agent.max_tokens, agent.model)
            tools = server.tools.schemas(agent)
            async with context_connection(self._runtime) as conn:
                return await self._prepared(conn, request, seq, asked, row, agent.model, tools, notes)

        recall = functools.partial(self._use_tool, request, seq)
        run_ = TeamRun(self._runtime, server, request, seq, _author(request), progress, ends_at, prepared, recall)
        run_.locale = None if wanted.enable_suggestions is False else locale
        try:
            async with until_cancelled(self._runtime.log.nc, request):
                await run_.make(chosen)
        except AnswerCancelled as error:
            await run_.stop_writing()
            if not run_.cut_short(error.code):
                run_end.extend(run_.ended_by(error.code))
                stands = f"; its tools have written, which is not undone: {', '.join(run_.wrote)}" if run_.wrote else ""
                raise AnswerCancelled(f"{error}{stands}") from None
        except FINAL as error:
            run_end.extend(run_.ended_by(error.code))
            raise
        finally:
            answered_by((run_.chain or [chosen.agent.type])[-1])
        assert run_.prepared is not None, "a run that ends has asked for a context"
        await self._finish(request, data, seq, progress, run_.prepared, run_.rounds, run_.extra)

    async def _finish(
        self,
        request: Event,
        data: AnswerRequested,
        seq: int,
        progress: Progress,
        prepared: Prepared,
        rounds: list[Round],
        extra: Sequence[Event] = (),
    ) -> None:
        """Records the answer. extra: events to record with it."""
        await self._check_is_there(request, data)
        id_of = functools.partial(answer_id, request.id)
        answer = answer_of(_author(request), prepared.receipt, rounds, self._agent_of(request), id_of, request.id)
        await self._record(request, seq, replace(answer, usages=[*answer.usages, *extra]))
        await progress.tell("end", finish_reason=rounds[-1].completion.finish_reason)
        by_tools = [id_ for made in rounds for _, result in made.results for id_ in result.memories]
        await self._note_access(request, [*map(UUID, prepared.context.receipt.memories), *by_tools])

    async def _check_is_there(self, request: Event, data: AnswerRequested) -> None:
        """Raises NotFound if the question was deleted while its answer was made."""
        async with context_connection(self._runtime) as conn:
            if await message_by_event(conn, request.tenant, request.thread, data.turn_id) is None:
                raise NotFound(f"thread {request.thread!r} was deleted while the answer was made")

    async def _is_answered(self, request: Event, seq: int) -> bool:
        """Returns whether another attempt has recorded the answer. It looks for the receipt first."""
        last_receipt = await self._runtime.log.thread_head(request.tenant, request.thread, "answer_receipt")
        return last_receipt > seq and (await outcome(self._runtime.log, request, seq)).answered

    async def _prepared(
        self,
        conn: Connection,
        request: Event,
        seq: int,
        asked: Message,
        agent: AgentRow,
        model: str | None,
        tools: Sequence[dict[str, Any]] = (SCHEMA,),
        notes: Sequence[str] = (),
    ) -> Prepared:
        """Prepares the context with the prompt and model of the request, else of the agent, else of the server. asked:
        the turn with the question. Raises NotFound, WindowTooSmall."""
        data, place, settings = request.data, (request.tenant, request.thread), self._runtime.settings
        assert isinstance(data, AnswerRequested)
        prompts = (data.system_prompt, agent.system_prompt)
        wanted = ContextRequest(
            *place,
            request.user,
            content_text(asked.content),
            request.time,
            model or self._models.chat.model,
            next((prompt for prompt in prompts if prompt is not None), settings.system_prompt),
            tools,
            as_of_seq=seq,
            turn_id=data.turn_id,
            asked_seq=asked.seq,
            relevant=settings.hybrid_episodes,
            answer_tokens=agent.max_tokens or 0,
            notes=notes,
        )
        return await prepare(self._runtime, conn, wanted)

    async def _use_tool(self, request: Event, seq: int, prepared: Prepared, call: ToolCall) -> ToolResult:
        """Runs a tool for the model. Recall leaves out recent turns that are already in the context."""
        shown = {item.seq for tier in prepared.context.tiers for item in tier.items if item.seq}
        first_shown = min(shown.difference(prepared.context.receipt.relevant), default=seq)
        recall = recall_of(self._runtime, asker_of(request.tenant, request.user or request.thread))
        memories = MemoriesOf(self._runtime, request.tenant, request.user, request.time)
        scope, top_k = Scope(request.tenant, request.thread), self._runtime.settings.recall_top_k
        async with context_connection(self._runtime) as conn:
            return await run_tool(call, conn, recall, scope, top_k, first_shown, memories)

    async def _record(self, request: Event, seq: int, answer: Answer) -> None:
        """Records the answer, unless another attempt has recorded one. If NATS is away or the log is full, waits and
        tries again, so that the answer is not paid for twice."""
        while True:
            try:
                # The lock may have been lost in the meantime, and JetStream refuses a duplicate answer only within its
                # deduplication window.
                if not await self._is_answered(request, seq):
                    await record(self._runtime, answer, is_repeatable=True)
                return
            except (GapInLog, LogFull, LogUnavailable) as error:
                logger.warning("an answer waits for the log: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _note_access(self, request: Event, read: list[UUID]) -> None:
        """Records which memories were read for an answer; a failure does not fail the answer."""
        if not read or not request.user:
            return
        try:
            await self._memories.accessed(request.tenant, request.user, read, cause=request.id)
        except TurnlogError as error:
            logger.warning("could not record access to %d memories: %s", len(read), error)

    async def _failed(self, request: Event, progress: Progress, error: TurnlogError, run_end: Sequence[Event]) -> None:
        """Tells the asker about the failure, and records it in one batch with `run_end`, the events that end a team's
        run.

        The failure ends the request. If only `run_end` were on the log, the request would be answered again, and the
        answer's batch would contain events with the same ids.
        """
        wait_s = getattr(error, "retry_after_s", None)
        await progress.tell("error", str(error), True, code=error.code, retry_after_s=wait_s)
        failed = failed_usage(self._models.chat, "answer", self._agent_of(request), error)
        if isinstance(error, EmptyAnswer) and isinstance(error.usage, Usage):
            failed = error.usage.metered("answer", failed.agent).model_copy(update={"error": failed.error})
        author = _author(request)
        events = [*run_end, author.event(answer_id(request.id, FAILURE), failed, request.id)]
        if self._runtime.settings.team is not None and not run_end:
            events.append(failed_event(author, request.id, [self._agent_of(request)], error.code))
        await self._runtime.log.append_many(events)

    def _agent_of(self, request: Event) -> str:
        return (isinstance(request.data, AnswerRequested) and request.data.agent) or entry_agent(self._runtime)


async def _asked(conn: Connection, request: Event, data: AnswerRequested) -> Message:
    """Returns the turn to answer. Raises ThreadParked if it could not be projected, NotFound if it was deleted."""
    place = (request.tenant, request.thread)
    asked = await message_by_event(conn, *place, data.turn_id)
    if asked is None:
        refuse_parked(request.thread, await first_parked(conn, ("messages",), *place))
        raise NotFound(f"thread {request.thread!r} has no turn {data.turn_id} to answer; it may have been deleted")
    return asked


def _is_final(error: BaseException) -> bool:
    return isinstance(error, FINAL)


def _author(request: Event) -> Author:
    cause = request.correlation or request.id
    return Author(SOURCE, request.tenant, request.thread, request.user, cause, request.time.tzinfo)
