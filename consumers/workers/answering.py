"""The agent consumer: request → own turn projected → context → tool loop → answer, receipt and usage in one batch."""

import asyncio
import contextlib
import functools
import logging
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from turnlog.agent.answering.agents import DEFAULT_AGENT, AgentDisabled, answering_agent
from turnlog.agent.answering.pieces import Round
from turnlog.agent.answering.prepare import READS, ContextRequest, prepare, reading
from turnlog.agent.answering.progress import Progress, progress_of
from turnlog.agent.answering.recall_tool import SCHEMA, MemoriesOf, ToolResult, run_tool
from turnlog.agent.answering.recalled_memories import AnswerMemories
from turnlog.agent.answering.record import Answer, Author, answer_of, record
from turnlog.agent.answering.request import FAILURE, answer_id
from turnlog.agent.answering.run import Tools, check_not_empty, run
from turnlog.agent.context import Context, WindowTooSmall
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.conversations.locks import SharedLocks
from turnlog.agent.models import observed
from turnlog.agent.models.errors import EmptyAnswer, ModelError
from turnlog.agent.models.protocol import ChatRequest, Usage, asker_of
from turnlog.agent.recall.search import recall_of
from turnlog.agent.runtime import Runtime
from turnlog.consumers.workers.answer_locks import answered_alone
from turnlog.consumers.workers.durable_consumer import Delivery
from turnlog.events.contracts import AnswerRequested, Event, ToolCall, UsageMetered
from turnlog.events.errors import EventTooLarge, InvalidEvent, LogFull, LogUnavailable, NotFound, TurnlogError
from turnlog.events.log import Log
from turnlog.events.publish import Key
from turnlog.events.read import recorded
from turnlog.events.subjects import check_conversation
from turnlog.projectors.engine.duplicates import first_seqs
from turnlog.projectors.engine.lag import READ_WHILE_REBUILT, wait_for
from turnlog.projectors.engine.parking import ThreadParked, first_parked, refuse_parked
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.message import message_by_event
from turnlog.projectors.models.operations.agents import AgentRow


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the log has for a request: an answer, or that there is none."""

    answered: bool
    failed: bool


async def outcome(log: Log, request: Event, seq: int) -> Outcome:
    """Reads the thread's event ids after the request, if there are any. Raises GapInLog, LogUnavailable."""
    if await log.thread_head(request.tenant, request.thread) == seq:
        return Outcome(False, False)
    stored = await log.stored_ids(request.tenant, request.thread, seq)
    return Outcome(answer_id(request.id, "answer") in stored, answer_id(request.id, FAILURE) in stored)


logger = logging.getLogger("turnlog.consumers")
SOURCE = "turnlog/agent"
# The model's client has tried again as long as the budget allows; the person was told, and asks again.
FINAL = (ModelError, NotFound, AgentDisabled, ThreadParked, WindowTooSmall, InvalidEvent, EventTooLarge)
RETRY_S = 5.0


class AgentConsumer:
    """work() is what its Inbox calls, with the requests of one thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._models = runtime, runtime.models
        self._memories, self._locks = AnswerMemories(runtime), SharedLocks(runtime.pool)

    async def work(self, deliveries: list[Delivery]) -> None:
        for delivery in sorted(deliveries, key=lambda d: d.seq):
            try:
                event = recorded(await self._runtime.log.stored(delivery.seq)).event
            except (InvalidEvent, NotFound):
                continue  # the projectors park it, visibly; or it was erased
            await self._answer(event, delivery)

    async def _answer(self, request: Event, delivery: Delivery) -> None:
        progress = progress_of(self._runtime.log.nc, request.tenant, request.thread, request.id, delivery.attempt)
        if not await self._is_first(request, delivery):
            return  # the same request again, much later: one event
        async with answered_alone(self._locks, request, delivery.attempt):
            before = await outcome(self._runtime.log, request, delivery.seq)
            if before.answered or before.failed:  # delivered again: who asked reads it on the log
                await progress.tell("end")
                return
            try:
                place = (request.tenant, request.thread, request.traceparent)
                with observed.answer(_agent_of(request), *place, _is_final):
                    await self._make(request, delivery.seq, progress)
            except FINAL as error:
                await self._failed(request, progress, error)

    async def _is_first(self, request: Event, delivery: Delivery) -> bool:
        """Whether no earlier event is this request; waits until the read models have it. Raises NotProjectedInTime."""
        async with reading(self._runtime) as conn:
            await wait_for(conn, READS, delivery.partition, delivery.seq, without=READ_WHILE_REBUILT)
            key = Key.of(request)
            return (await first_seqs(conn, [delivery.partition], [key])).get(key) == delivery.seq

    async def _make(self, request: Event, seq: int, progress: Progress) -> None:
        # The budget of the answer begins when its worker takes it up, however long the workers were away.
        ends_at = asyncio.get_running_loop().time() + self._runtime.settings.answer_timeout_s
        check_conversation(request.thread)  # anyone may publish a request on any thread
        await progress.tell("start")
        await self._models.embedder.ready()
        data = request.data
        assert isinstance(data, AnswerRequested)
        async with reading(self._runtime) as conn:
            agent = await answering_agent(conn, request.tenant, data.agent)
            await restored_if_archived(self._runtime, conn, request.tenant, request.thread)
            asked = await message_by_event(conn, request.tenant, request.thread, data.turn_id)
            if asked is None:
                refuse_parked(request.thread, await first_parked(conn, ("messages",), request.tenant, request.thread))
            data = data.model_copy(update=_filled(data, agent))
            settings = self._runtime.settings
            wanted = ContextRequest(
                request.tenant,
                request.thread,
                request.user,
                content_text(asked.content) if asked else "",
                request.time,
                data.model or self._models.chat.model,
                settings.system_prompt if data.system_prompt is None else data.system_prompt,
                [SCHEMA],
                as_of_seq=seq,
                turn_id=data.turn_id,
                asked_seq=asked.seq if asked else None,
                relevant=settings.hybrid_episodes if asked else 0,
                answer_tokens=agent.max_tokens or 0,
            )
            prepared = await prepare(self._runtime, conn, wanted)
        context = prepared.context
        await progress.tell("context", context=_seen(context) | {"degraded": prepared.degraded})
        scope = Scope(request.tenant, request.thread)
        first_shown = _first_shown(context, seq)
        memories = MemoriesOf(self._memories, request.tenant, request.user, request.time)

        async def use(call: ToolCall) -> ToolResult:
            top_k = self._runtime.settings.recall_top_k
            async with reading(self._runtime) as conn:
                recall = recall_of(self._runtime, asker_of(request.tenant, request.user or request.thread))
                return await run_tool(call, conn, recall, scope, top_k, first_shown, memories)

        first = ChatRequest(
            context.messages,
            (),
            data.model,
            agent.temperature,
            agent.max_tokens,
            restart=True,
            ends_at=ends_at,
            asker=asker_of(request.tenant, request.user or request.thread),
        )
        rounds: list[Round] = []
        async with contextlib.aclosing(run(self._models.chat, first, Tools([SCHEMA], use))) as pieces:
            async for piece in pieces:
                await progress.show(piece)
                if isinstance(piece, Round):
                    check_not_empty(piece.completion)
                    rounds.append(piece)
        async with reading(self._runtime) as conn:
            if await message_by_event(conn, request.tenant, request.thread, data.turn_id) is None:
                raise NotFound(f"thread {request.thread!r} was deleted while the answer was made")
        # Postgres may have lost the lock meanwhile; JetStream refuses a duplicate answer only within its dedup window.
        if not (await outcome(self._runtime.log, request, seq)).answered:
            id_of = functools.partial(answer_id, request.id)
            author, agent_name = _author(request), _agent_of(request)
            await self._record(answer_of(author, prepared.receipt, rounds, agent_name, id_of, request.id))
        await progress.tell("end", finish_reason=rounds[-1].completion.finish_reason)
        read = [id_ for one in rounds for _, result in one.results for id_ in result.memories]
        await self._memories.accessed(request, [*map(UUID, context.receipt.memories), *read])

    async def _record(self, answer: Answer) -> None:
        """Waits for a log that accepts no events now, rather than pay for the answer twice."""
        while True:
            try:
                await record(self._runtime, answer, is_repeatable=True)
                return
            except (LogFull, LogUnavailable) as error:
                logger.warning("an answer waits for the log: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _failed(self, request: Event, progress: Progress, error: TurnlogError) -> None:
        """Tells who asked, and records the failure, which ends the request."""
        wait_s = getattr(error, "retry_after_s", None)
        await progress.tell("error", str(error), True, code=error.code, retry_after_s=wait_s)
        failed = UsageMetered(
            purpose="answer",
            agent=_agent_of(request),
            provider=self._models.chat.provider,
            model=self._models.chat.model,
        )
        if isinstance(error, EmptyAnswer) and isinstance(error.usage, Usage):
            failed = error.usage.metered("answer", _agent_of(request))
        failed = failed.model_copy(update={"error": f"{error.code}: {error}"[:500]})
        event = _author(request).event(answer_id(request.id, FAILURE), failed, request.id)
        await self._runtime.log.append(event)


def _is_final(error: BaseException) -> bool:
    return isinstance(error, FINAL)


def _agent_of(request: Event) -> str:
    return (isinstance(request.data, AnswerRequested) and request.data.agent) or DEFAULT_AGENT


def _filled(data: AnswerRequested, agent: AgentRow) -> dict[str, str | None]:
    """The prompt and model of the request, or else the agent's."""
    prompt = agent.system_prompt if data.system_prompt is None else data.system_prompt
    return {"system_prompt": prompt, "model": data.model or agent.model}


def _seen(context: Context) -> dict[str, Any]:
    tiers = [
        {"tier": one.tier, "tokens": one.tokens, "limit": one.limit, "turns": len(one.items)} for one in context.tiers
    ]
    return {"tiers": tiers, "memories": list(context.receipt.memories), "dropped": context.receipt.dropped.count}


def _first_shown(context: Context, seq: int) -> int:
    """The first turn shown for being recent: recall leaves out the turns from there on."""
    seqs = {item.seq for tier in context.tiers for item in tier.items if item.seq}
    return min(seqs.difference(context.receipt.relevant), default=seq)


def _author(request: Event) -> Author:
    cause = request.correlation or request.id
    return Author(SOURCE, request.tenant, request.thread, request.user, cause, request.time.tzinfo)
