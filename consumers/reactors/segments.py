"""The segment reactor: a checkpoint that a query asked for is made here, off the answer's path (C7; seed B).

Three retries with a pause before each; then the session goes on in FULL_HISTORY. What came of a request is on the log
after it, so that a request that is delivered again, or that a newer checkpoint, a reset or a deletion overtook, does
nothing.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import psycopg

from turnlog.agent import metrics
from turnlog.agent.context import TokenCounter, counter_for
from turnlog.agent.models.errors import BreakerOpen, ModelError
from turnlog.agent.models.factory import Models
from turnlog.agent.models.offline_tasks import PROVIDER as OFFLINE
from turnlog.agent.models.protocol import Usage
from turnlog.agent.sessions.checkpoint import automatic_cut, summary_limit
from turnlog.consumers.inbox import Delivery, Later
from turnlog.consumers.reactors.budget import ledger
from turnlog.consumers.reactors.derive import Derived, Deriver
from turnlog.consumers.reactors.facts import texts
from turnlog.consumers.reactors.once import forget_answers
from turnlog.consumers.reactors.results import NAME as LEDGER
from turnlog.consumers.reactors.results import failure_metered
from turnlog.consumers.reactors.segment_results import Work, checkpoint_failed, checkpointed, spent
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import Event, Recorded
from turnlog.events.errors import InvalidEvent, NotFound, WrongExpectedVersion
from turnlog.events.read import recorded
from turnlog.events.session_contracts import SegmentCheckpointed, SegmentCheckpointRequested
from turnlog.projectors.lag import wait_for
from turnlog.projectors.session_lookup import session_state
from turnlog.projectors.writer import Connection

NAME = "segments"
READS = ("sessions", "messages")
PAUSES_S = (1.0, 2.0, 3.0)
ENDED_BY = ("session_created", "segment_checkpointed", "segment_checkpoint_failed", "thread_deleted", "erased")


class SegmentReactor:
    """work() is what its Inbox calls, with the requests of one thread. Raises Later when the budget is spent."""

    def __init__(self, runtime: Runtime, models: Models, pauses_s: Sequence[float] | None = None) -> None:
        """pauses_s: before each retry; None: PAUSES_S."""
        self._runtime, self._models = runtime, models
        self._pauses_s = PAUSES_S if pauses_s is None else pauses_s
        self._tries = len(self._pauses_s) + 1
        self._model = Usage(models.chat.provider, models.chat.model)
        self._counter = counter_for(models.chat.model)
        self._ledger = ledger(LEDGER, runtime.settings, is_local=models.chat.provider == OFFLINE)

    async def work(self, deliveries: list[Delivery]) -> None:
        for delivery in sorted(deliveries, key=lambda d: d.seq):
            try:
                request = recorded(await self._runtime.log.stored(delivery.seq))
            except (InvalidEvent, NotFound):
                continue  # the projectors park it, visibly; or it was erased
            async with self._runtime.pool.connection() as conn:
                await _lock(conn, request.event)
                try:
                    await self._answer(conn, request)
                finally:
                    with contextlib.suppress(psycopg.Error):  # the connection is lost, and with it the lock
                        await conn.execute("SELECT pg_advisory_unlock_all()")

    async def _answer(self, conn: Connection, request: Recorded) -> None:
        """Up to date first: what the thread got since the request may have ended it."""
        await wait_for(conn, READS, request.partition, await self._head(request))
        work = None if await self._is_over(request) else await self._due(conn, request)
        if work is None:
            metrics.checkpoint_ended("automatic", "stale")
            return
        deriver = self._deriver(conn, work)
        try:
            ended, *failure = await self._tried(work, deriver)
        except Later:
            await self._store(request, [], spent(work, deriver.calls))
            raise
        is_stored = await self._store(request, [ended], [*spent(work, deriver.calls), *failure])
        if not is_stored:
            await forget_answers(conn, [call.key for call in deriver.calls])
        _count(ended, is_stored, self._counter)

    async def _tried(self, work: Work, deriver: Deriver) -> list[Event]:
        """The checkpoint, or its failure and what is metered of that. Raises Later."""
        try:
            return [checkpointed(work, await self._summarised(work, deriver), self._model)]
        except BreakerOpen as error:  # no call was made
            return [checkpoint_failed(work, error, self._tries)]
        except ModelError as error:
            failed = failure_metered(work.thread, self._model, error, "summary")
            return [checkpoint_failed(work, error, self._tries), failed]

    async def _due(self, conn: Connection, request: Recorded) -> Work | None:
        """None when there is no session, or no turn that the summary could take."""
        event, data = request.event, request.event.data
        assert isinstance(data, SegmentCheckpointRequested)
        state = await session_state(conn, event.tenant, event.thread)
        cut = state and automatic_cut(state, data.through_seq, data.rules, self._counter)
        return Work(request, data.rules, state.summary, cut) if state and cut else None

    async def _summarised(self, work: Work, deriver: Deriver) -> Derived:
        """Raises the last ModelError that a call met, for an open breaker does not say what is wrong; and Later."""
        met: ModelError | None = None
        for pause_s in (0.0, *self._pauses_s):
            await asyncio.sleep(pause_s)
            try:
                return await _once_let_in(work, deriver)
            except ModelError as error:
                met = error if met is None or not isinstance(error, BreakerOpen) else met
        assert met is not None
        raise met

    def _deriver(self, conn: Connection, work: Work) -> Deriver:
        limit = summary_limit(work.rules, self._runtime.settings.max_summary_tokens)
        tasks, ledger_ = self._models.tasks, self._ledger
        return Deriver(tasks, self._model.model, self._counter, limit, ledger_, conn, work.thread.owner)

    async def _store(self, request: Recorded, result: list[Event], costs: list[Event]) -> bool:
        """False when the request was over by then: only what the models cost is stored."""
        while True:  # nothing slow in it, or a conversation that goes on all the time would always be first
            head = await self._head(request)
            over = await self._is_over(request)
            try:
                if events := costs if over else [*result, *costs]:
                    await self._runtime.log.append_many(events, expected=head, fresh=True)
            except WrongExpectedVersion:
                continue  # the conversation went on, or was reset or deleted just now
            return not over

    async def _head(self, request: Recorded) -> int:
        return await self._runtime.log.thread_head(request.event.tenant, request.event.thread)

    async def _is_over(self, request: Recorded) -> bool:
        """Whether the thread got, after what the request has seen, an event that makes it pointless."""
        event, data = request.event, request.event.data
        assert isinstance(data, SegmentCheckpointRequested)
        after = self._runtime.log.read_thread(event.tenant, event.thread, data.through_seq + 1, types=ENDED_BY)
        return bool([one async for one in after])


async def _once_let_in(work: Work, deriver: Deriver) -> Derived:
    """A try that an open breaker refuses would be none: it waits until the breaker lets calls through again."""
    covered = texts(work.cut.covered)
    try:
        return await deriver.summary(covered, work.previous)
    except BreakerOpen as refused:
        await asyncio.sleep(refused.retry_after_s or 0.0)
        return await deriver.summary(covered, work.previous)


async def _lock(conn: Connection, event: Event) -> None:
    """Of the session; a dead worker's ends with its connection. Raises Later."""
    name = f"{NAME}/{event.tenant}/{event.thread}"
    rows = await conn.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 3))", (name,))
    if await rows.fetchone() != (True,):
        raise Later(2.0, f"another worker is at the segments of thread {event.thread}")


def _count(ended: Event, is_stored: bool, counter: TokenCounter) -> None:
    if not is_stored:
        metrics.checkpoint_ended("automatic", "stale")
    elif isinstance(ended.data, SegmentCheckpointed):
        metrics.checkpoint_ended("automatic", "made")
        metrics.SUMMARY_TOKENS.observe(counter.text(ended.data.summary))
    else:
        metrics.checkpoint_ended("automatic", "failed")
