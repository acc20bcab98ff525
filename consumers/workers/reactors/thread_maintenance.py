"""The thread maintenance reactor: tags, summarises and prunes a thread when due.

Several deliveries of a thread are handled together. Only one worker at a time works on a thread (advisory lock), and
its events are projected before the lock is released, so that the next decision uses current facts. Successful results
are stored even if another step failed; pruning waits until every step has succeeded.
"""

from turnlog.agent.context import counter_for
from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.conversations.summarising.derive import PIECE_TEXTS, Deriver
from turnlog.agent.conversations.summarising.due_work import Facts, Plan, plan
from turnlog.agent.conversations.summarising.facts import is_still_there, load, texts
from turnlog.agent.conversations.summarising.results import NAME as NAME
from turnlog.agent.conversations.summarising.results import RoundResult, history_pruned, summary_written, topics_tagged
from turnlog.agent.models.cached_calls import forget_answers
from turnlog.agent.models.factory import Models
from turnlog.agent.models.offline_tasks import PROVIDER as OFFLINE
from turnlog.agent.models.protocol import Usage
from turnlog.agent.models.spending_limit import ledger
from turnlog.agent.recall.embedding.embedder import BATCH, embed_chunks, embedding_ledger
from turnlog.agent.recall.embedding.pending import pending_chunks
from turnlog.agent.retry_later import RetryLater
from turnlog.agent.runtime import Runtime
from turnlog.consumers.workers.durable_consumer import Delivery
from turnlog.events.contracts import Event, UsageMetered
from turnlog.events.errors import InvalidEvent, NotFound, WrongExpectedVersion
from turnlog.events.stored import recorded
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.locks import LockFor, work_lock
from turnlog.projectors.engine.writer import Connection

READS = ("messages", "checkpoints", "summaries", "topics", "vectors")


class ThreadMaintenance:
    """Maintains threads; its durable consumer calls work(). Raises RetryLater if a model is unavailable, the budget is
    spent, or another worker works on the thread."""

    def __init__(self, runtime: Runtime, models: Models) -> None:
        self._runtime, self._models = runtime, models
        self._model = Usage(models.chat.provider, models.chat.model)
        self._counter = counter_for(models.chat.model)
        self._ledger = ledger(NAME, runtime.settings, is_local=models.chat.provider == OFFLINE)

    async def work(self, deliveries: list[Delivery]) -> None:
        newest = max(deliveries, key=lambda d: d.seq)
        try:
            event = recorded(await self._runtime.log.stored(newest.seq)).event
        except (InvalidEvent, NotFound):
            return  # the event was erased, or the projectors park it
        async with self._runtime.pool.connection() as conn:
            await wait_for(conn, READS, newest.partition, newest.seq)
            await restored_if_archived(self._runtime, conn, event.tenant, event.thread)
            name = f"{NAME}/{event.tenant}/{event.thread}"
            async with work_lock(conn, LockFor.THREAD_UPKEEP, name) as held:
                if not held:
                    raise RetryLater(2.0, f"another worker is working on thread {event.thread}")
                await self._look(conn, event, newest.partition)

    async def _look(self, conn: Connection, event: Event, partition: int) -> None:
        """Runs rounds until nothing is due, or until a round changes nothing because the thread is parked."""
        done: Plan | None = None
        while True:
            head = await self._runtime.log.thread_head(event.tenant, event.thread)
            await wait_for(conn, READS, partition, head)
            thread = await load(conn, event, partition)
            facts = Facts(thread.messages, thread.summarised_through, thread.tagged_through)
            due = plan(facts, self._runtime.settings)
            if due.nothing or due == done:
                return
            limit = self._runtime.settings.max_summary_tokens
            tasks, model = self._models.tasks, self._model.model
            deriver = Deriver(tasks, model, self._counter, limit, self._ledger, conn, thread.owner)
            round_ = RoundResult(thread, due, deriver)
            await self._derive(conn, round_)
            await self._store(conn, round_)
            if round_.problem is not None:
                raise round_.problem
            done = due

    async def _derive(self, conn: Connection, round_: RoundResult) -> None:
        """Derives topics, vectors and summary, and prunes only if all of them succeeded."""
        due = round_.due
        if due.tag_through is not None:
            await self._topics(round_, due.tag_through)
        if due.prune_through is not None:
            await self._vectors(conn, round_)
        if due.summarise_through is not None:
            thread = round_.thread
            span = thread.span(thread.summarised_through, due.summarise_through)
            with round_.step("summary", self._model):
                made = await round_.deriver.summary(texts(span), thread.summary.summary if thread.summary else "")
                round_.events.append(summary_written(thread, made, self._model, span, due.summarise_through))
        if due.prune_through is not None and round_.problem is None:
            round_.events.append(history_pruned(round_.thread, due.prune_through))

    async def _topics(self, round_: RoundResult, through: int) -> None:
        """Adds one topics event for every PIECE_TEXTS turns, so that the turns of a long import do not share all its
        topics."""
        span = round_.thread.span(round_.thread.tagged_through, through)
        with round_.step("topics", self._model):
            for first in range(0, len(span), PIECE_TEXTS):
                part = span[first : first + PIECE_TEXTS]
                made = await round_.deriver.topics(texts(part))
                round_.events.append(topics_tagged(round_.thread, made, self._model, part, part[-1].seq))

    async def _vectors(self, conn: Connection, round_: RoundResult) -> None:
        embedder, thread = self._models.embedder, round_.thread
        done: set[str] = set()
        await embedder.ready()
        budget = embedding_ledger(self._runtime.settings, embedder)
        with round_.step("embedding", Usage(embedder.provider, embedder.model)):
            while batch := await pending_chunks(conn, embedder.model, BATCH, done, thread.tenant, [thread.thread]):
                await embed_chunks(self._runtime, conn, embedder, batch, budget)
                done |= {chunk.id for chunk in batch}

    async def _store(self, conn: Connection, round_: RoundResult) -> None:
        """Stores the results; stores only their usage if the thread was deleted or a person erased meanwhile."""
        log, thread, events = self._runtime.log, round_.thread, round_.events
        while events:
            head = await log.thread_head(thread.tenant, thread.thread)
            await wait_for(conn, READS, thread.partition, head)
            if not await is_still_there(conn, thread):
                events = [event for event in events if isinstance(event.data, UsageMetered)]
                await forget_answers(conn, [call.key for call in round_.deriver.calls])
            try:
                last = (await log.append_many(events, expected=head))[-1]
            except WrongExpectedVersion:
                continue  # the conversation has just continued, or was deleted
            return await wait_for(conn, READS, thread.partition, last.seq)
