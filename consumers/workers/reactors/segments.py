"""The segment reactor: makes the checkpoints that queries request, outside the answer's path.

After three failed retries, each after a pause, the session continues in FULL_HISTORY. A request's outcome follows it in
the log, so a redelivered request does nothing; neither does a request that a newer checkpoint, a reset or a deletion
has made obsolete.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import NAMESPACE_OID, uuid5

from turnlog.agent import metrics
from turnlog.agent.context import counter_for
from turnlog.agent.conversations.sessions.checkpoint import Cut, automatic_cut, summary_limit
from turnlog.agent.conversations.summarising.derive import Derived, Deriver, ModelCall
from turnlog.agent.conversations.summarising.facts import ThreadFacts, texts
from turnlog.agent.conversations.summarising.results import NAME as LEDGER
from turnlog.agent.conversations.summarising.results import derivation, failure_metered, usage_metered
from turnlog.agent.models.cached_calls import forget_answers
from turnlog.agent.models.errors import BreakerOpen, ModelError
from turnlog.agent.models.factory import Models
from turnlog.agent.models.offline_tasks import PROVIDER as OFFLINE
from turnlog.agent.models.protocol import Usage
from turnlog.agent.models.spending_limit import ledger
from turnlog.agent.retry_later import RetryLater
from turnlog.agent.runtime import Runtime
from turnlog.consumers.workers.durable_consumer import Delivery
from turnlog.events.contracts import (
    Event,
    EventData,
    Recorded,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SegmentCheckpointRequested,
    SegmentRules,
)
from turnlog.events.errors import InvalidEvent, NotFound, WrongExpectedVersion
from turnlog.events.stored import recorded
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.locks import LockFor, work_lock
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.sessions.lookup import session_state

SOURCE = "turnlog/segments"


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a request: the turns to add to the previous summary."""

    request: Recorded
    rules: SegmentRules
    previous: str
    cut: Cut

    @property
    def thread(self) -> ThreadFacts:
        event = self.request.event
        return ThreadFacts(event.tenant, event.thread, event.user, self.request.partition, self.cut.covered, None, 0)


def checkpointed(work: Work, made: Derived, model: Usage) -> Event:
    cut = work.cut
    data = SegmentCheckpointed(
        summary=made.text,
        recent_turns=cut.kept,
        covered_seq=cut.covered_seq,
        turns_covered=cut.turns_covered,
        trigger="automatic",
        derivation=derivation(made, model, cut.covered, cut.covered_seq),
    )
    return _result(work, data)


def checkpoint_failed(work: Work, error: ModelError, attempts: int) -> Event:
    return _result(work, SegmentCheckpointFailed(attempts=attempts, error=f"{error.code}: {error}"[:500]))


def spent(work: Work, calls: Sequence[ModelCall]) -> list[Event]:
    """Returns the usage events of the work; a call whose result a retry took from the cache counts once."""
    thread = work.thread
    return [usage_metered(thread, call, "summary") for call in {call.key: call for call in calls}.values()]


def _result(work: Work, data: EventData) -> Event:
    request = work.request.event
    return Event(
        id=uuid5(NAMESPACE_OID, f"{data.type}/{request.id}"),
        source=SOURCE,
        tenant=request.tenant,
        thread=request.thread,
        user=request.user,
        causation=request.id,
        correlation=request.correlation or request.id,
        data=data,
    )


NAME = "segments"
READS = ("sessions", "messages")
PAUSES_S = (1.0, 2.0, 3.0)
ENDED_BY = ("session_created", "segment_checkpointed", "segment_checkpoint_failed", "thread_deleted", "erased")


class SegmentReactor:
    """Makes checkpoints of sessions; its durable consumer calls work() with the requests of one thread.

    Raises RetryLater when the budget is spent, or while another worker works on the thread."""

    def __init__(self, runtime: Runtime, models: Models, pauses_s: Sequence[float] = PAUSES_S) -> None:
        """Creates the reactor. pauses_s: the seconds to wait before each retry."""
        self._runtime, self._models = runtime, models
        self._pauses_s, self._tries = pauses_s, len(pauses_s) + 1
        self._model = Usage(models.chat.provider, models.chat.model)
        self._counter = counter_for(models.chat.model)
        self._ledger = ledger(LEDGER, runtime.settings, is_local=models.chat.provider == OFFLINE)

    async def work(self, deliveries: list[Delivery]) -> None:
        for delivery in sorted(deliveries, key=lambda d: d.seq):
            try:
                request = recorded(await self._runtime.log.stored(delivery.seq))
            except (InvalidEvent, NotFound):
                continue  # the event was erased, or the projectors park it
            async with self._runtime.pool.connection() as conn:
                thread = request.event.thread
                async with work_lock(conn, LockFor.SEGMENTS, f"{NAME}/{request.event.tenant}/{thread}") as held:
                    if not held:
                        raise RetryLater(2.0, f"another worker is summarising segments of thread {thread}")
                    await self._answer(conn, request)

    async def _answer(self, conn: Connection, request: Recorded) -> None:
        """Answers a request, after waiting for the read models, because later events of the thread may have made it
        obsolete."""
        await wait_for(conn, READS, request.partition, await self._head(request))
        work = None if await self._is_over(request) else await self._due(conn, request)
        if work is None:
            metrics.checkpoint_ended("automatic", "stale")
            return
        limit = summary_limit(work.rules, self._runtime.settings.max_summary_tokens)
        tasks, ledger_ = self._models.tasks, self._ledger
        deriver = Deriver(tasks, self._model.model, self._counter, limit, ledger_, conn, work.thread.owner)
        try:
            ended, *failure = await self._tried(work, deriver)
        except RetryLater:
            await self._store(request, [], spent(work, deriver.calls))
            raise
        is_stored = await self._store(request, [ended], [*spent(work, deriver.calls), *failure])
        if not is_stored:
            await forget_answers(conn, [call.key for call in deriver.calls])
            metrics.checkpoint_ended("automatic", "stale")
        elif isinstance(ended.data, SegmentCheckpointed):
            metrics.checkpoint_ended("automatic", "made")
            metrics.SUMMARY_TOKENS.observe(self._counter.text(ended.data.summary))
        else:
            metrics.checkpoint_ended("automatic", "failed")

    async def _tried(self, work: Work, deriver: Deriver) -> list[Event]:
        """Returns the event of the checkpoint, or of its failure with the metered usage. Raises RetryLater."""
        try:
            return [checkpointed(work, await self._summarised(work, deriver), self._model)]
        except BreakerOpen as error:  # no call was made
            return [checkpoint_failed(work, error, self._tries)]
        except ModelError as error:
            failed = failure_metered(work.thread, self._model, error, "summary")
            return [checkpoint_failed(work, error, self._tries), failed]

    async def _due(self, conn: Connection, request: Recorded) -> Work | None:
        """Returns the work of a request; None if there is no session, or no turn to summarise."""
        event, data = request.event, request.event.data
        assert isinstance(data, SegmentCheckpointRequested)
        state = await session_state(conn, event.tenant, event.thread)
        cut = state and automatic_cut(state, data.through_seq, data.rules, self._counter)
        return Work(request, data.rules, state.summary, cut) if state and cut else None

    async def _summarised(self, work: Work, deriver: Deriver) -> Derived:
        """Summarises the turns. Raises RetryLater, or the last ModelError other than BreakerOpen, which would hide the
        cause."""
        met: ModelError | None = None
        for pause_s in (0.0, *self._pauses_s):
            await asyncio.sleep(pause_s)
            try:
                return await _once_let_in(work, deriver)
            except ModelError as error:
                met = error if met is None or not isinstance(error, BreakerOpen) else met
        assert met is not None
        raise met

    async def _store(self, request: Recorded, result: list[Event], costs: list[Event]) -> bool:
        """Stores result and usage and returns True. If the request has become obsolete, stores only the usage and
        returns False."""
        while True:  # tries again without a pause, or an active conversation would always append first
            head = await self._head(request)
            over = await self._is_over(request)
            try:
                if events := costs if over else [*result, *costs]:
                    await self._runtime.log.append_many(events, expected=head, fresh=True)
            except WrongExpectedVersion:
                continue  # the conversation has just continued, or was reset or deleted
            return not over

    async def _head(self, request: Recorded) -> int:
        return await self._runtime.log.thread_head(request.event.tenant, request.event.thread)

    async def _is_over(self, request: Recorded) -> bool:
        """Returns whether a later event of the thread makes the request obsolete."""
        event, data = request.event, request.event.data
        assert isinstance(data, SegmentCheckpointRequested)
        after = self._runtime.log.read_thread(event.tenant, event.thread, data.through_seq + 1, types=ENDED_BY)
        return bool([later async for later in after])


async def _once_let_in(work: Work, deriver: Deriver) -> Derived:
    """Summarises once. If the breaker refuses the call, waits until it admits calls, so that a refusal does not count
    as a try."""
    covered = texts(work.cut.covered)
    try:
        return await deriver.summary(covered, work.previous)
    except BreakerOpen as refused:
        await asyncio.sleep(refused.retry_after_s or 0.0)
        return await deriver.summary(covered, work.previous)
