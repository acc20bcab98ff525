"""The memory reactor: after turns of a thread, summarise, tag, prune, in that order of need (A 3.1).

Several deliveries of a thread are one look at it. A thread is worked on by one worker at a time (advisory lock)
and what was written is projected before the lock is given back, so that nobody decides on old facts.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from turnlog.agent.context import counter_for
from turnlog.agent.models.budget import Budget
from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.factory import Models
from turnlog.agent.models.protocol import Usage
from turnlog.agent.plain import said
from turnlog.consumers.embedding import embedding_events, pending_chunks
from turnlog.consumers.inbox import Delivery, Later
from turnlog.consumers.reactors.budget import book, refuse_over_budget
from turnlog.consumers.reactors.derive import Derived, Deriver
from turnlog.consumers.reactors.plan import Facts, Plan, plan
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import (
    Derivation,
    Event,
    EventData,
    HistoryPruned,
    SummaryWritten,
    TopicsTagged,
    UsageMetered,
)
from turnlog.events.errors import InvalidEvent
from turnlog.events.read import recorded
from turnlog.projectors.checkpoints import pruned_through
from turnlog.projectors.lag import wait_for
from turnlog.projectors.message import Message
from turnlog.projectors.messages import thread_messages
from turnlog.projectors.summaries import Summary, thread_summary
from turnlog.projectors.topics import tagged_through
from turnlog.projectors.writer import Connection

NAME = "memory"
SOURCE = "turnlog/memory"
READS = ("messages", "checkpoints", "summaries", "topics", "vectors")
MODEL_DOWN_S = 30.0


@dataclass(frozen=True, slots=True)
class Thread:
    tenant: str
    thread: str
    user: str | None
    partition: int
    messages: Sequence[Message]
    summary: Summary | None
    tagged_through: int


class MemoryReactor:
    """work() is what its Inbox calls. Raises Later when the model is down or the budget is spent."""

    def __init__(self, runtime: Runtime, models: Models) -> None:
        settings = runtime.settings
        self._runtime, self._models = runtime, models
        self._budget = Budget(settings.budget_calls_per_hour, settings.budget_tokens_per_hour)
        model = models.chat.model
        self._deriver = Deriver(models.tasks, model, counter_for(model), settings.max_summary_tokens)

    async def work(self, deliveries: list[Delivery]) -> None:
        newest = max(deliveries, key=lambda d: d.seq)
        try:
            event = recorded(await self._runtime.log.stored(newest.seq)).event
        except InvalidEvent:
            return  # the projectors park it, visibly
        async with self._runtime.pool.connection() as conn:
            await wait_for(conn, READS, newest.partition, newest.seq)
            await self._lock(conn, event.tenant, event.thread)
            try:
                await self._look(conn, event, newest.partition)
            except ModelError as error:
                raise Later(error.retry_after_s or MODEL_DOWN_S, str(error)) from error
            finally:
                await conn.execute("SELECT pg_advisory_unlock_all()")

    async def _lock(self, conn: Connection, tenant: str, thread: str) -> None:
        row = await (
            await conn.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 1))", (f"{NAME}/{tenant}/{thread}",))
        ).fetchone()
        if row is None or not row[0]:
            raise Later(2.0, f"another worker is at thread {thread}")

    async def _look(self, conn: Connection, event: Event, partition: int) -> None:
        thread = await _load(conn, event, partition)
        summarised = thread.summary.covered_seq if thread.summary else 0
        due = plan(Facts(thread.messages, summarised, thread.tagged_through), self._runtime.settings)
        if due.nothing:
            return
        await refuse_over_budget(conn, NAME, self._budget, 0)
        events = await self._derive(conn, thread, due)
        last = (await self._runtime.log.append_many(events))[-1]
        await wait_for(conn, READS, partition, last.seq)

    async def _derive(self, conn: Connection, thread: Thread, due: Plan) -> list[Event]:
        """Topics, vectors, summary, and only then the pruning; all of it is one atomic batch."""
        events: list[Event] = []
        if due.tag_through is not None:
            events += await self._topics(conn, thread, due.tag_through)
        if due.prune_through is not None:
            events += await self._vectors(conn, thread)
        if due.summarise_through is not None:
            events += await self._summary(conn, thread, due.summarise_through)
        if due.prune_through is not None:
            events.append(_pruned(thread, due.prune_through))
        return events

    async def _topics(self, conn: Connection, thread: Thread, through: int) -> list[Event]:
        span = [m for m in thread.messages if thread.tagged_through < m.seq <= through]
        made = await self._deriver.topics(conn, _texts(span))
        await book(conn, NAME, made.usages)
        data = TopicsTagged(topics=made.topics, derivation=_derivation(made, self._models, span, through))
        return [_event(thread, data, through), *_metered(thread, made, "topics")]

    async def _vectors(self, conn: Connection, thread: Thread) -> list[Event]:
        events: list[Event] = []
        done: set[str] = set()
        while batch := await pending_chunks(conn, self._models.embedder.model, 128, done, thread.tenant, thread.thread):
            events += await embedding_events(conn, self._models.embedder, batch)
            done |= {one.chunk_id for one in batch}
        return events

    async def _summary(self, conn: Connection, thread: Thread, through: int) -> list[Event]:
        covered = thread.summary.covered_seq if thread.summary else 0
        span = [m for m in thread.messages if covered < m.seq <= through]
        made = await self._deriver.summary(conn, _texts(span), thread.summary.summary if thread.summary else "")
        await book(conn, NAME, made.usages)
        data = SummaryWritten(
            summary=made.text,
            message_count=(thread.summary.message_count if thread.summary else 0) + len(span),
            covered_seq=through,
            derivation=_derivation(made, self._models, span, through),
        )
        return [_event(thread, data, through), *_metered(thread, made, "summary")]


async def _load(conn: Connection, event: Event, partition: int) -> Thread:
    place = (event.tenant, event.thread)
    return Thread(
        *place,
        event.user,
        partition,
        await thread_messages(conn, *place, await pruned_through(conn, *place)),
        await thread_summary(conn, *place),
        await tagged_through(conn, *place),
    )


def _texts(messages: Sequence[Message]) -> list[str]:
    return [text for message in messages if (text := said(message))]


def _pruned(thread: Thread, through: int) -> Event:
    removed = sum(message.seq <= through for message in thread.messages)
    data = HistoryPruned(through_seq=through, removed=removed, remaining=len(thread.messages) - removed)
    return _event(thread, data, through)


def _derivation(made: Derived, models: Models, span: Sequence[Message], through: int) -> Derivation:
    return Derivation(
        provider=models.chat.provider,
        model=models.chat.model,
        prompt_hash=made.prompt_hash,
        from_seq=span[0].seq if span else through,
        through_seq=through,
        tokens_in=sum(u.tokens_in for u in made.usages),
        tokens_out=sum(u.tokens_out for u in made.usages),
        cost_usd=sum(u.cost_usd for u in made.usages),
    )


def _event(thread: Thread, data: EventData, through: int) -> Event:
    """The id follows from what it was made of: a second worker's same result is the same event."""
    name = f"{data.type}/{thread.tenant}/{thread.thread}/{thread.messages[0].seq}/{through}"
    return Event(
        id=uuid.uuid5(uuid.NAMESPACE_OID, name),
        source=SOURCE,
        time=datetime.now(UTC),
        tenant=thread.tenant,
        thread=thread.thread,
        user=thread.user,
        data=data,
    )


def _metered(thread: Thread, made: Derived, purpose: Literal["summary", "topics"]) -> list[Event]:
    return [_usage_event(thread, usage, purpose) for usage in made.usages]


def _usage_event(thread: Thread, usage: Usage, purpose: Literal["summary", "topics"]) -> Event:
    return Event(
        source=SOURCE,
        time=datetime.now(UTC),
        tenant=thread.tenant,
        thread=thread.thread,
        user=thread.user,
        data=UsageMetered(
            purpose=purpose,
            agent=NAME,
            provider=usage.provider,
            model=usage.model,
            calls=usage.calls,
            tokens_in=usage.tokens_in,
            tokens_out=usage.tokens_out,
            cost_usd=usage.cost_usd,
            latency_ms=usage.latency_ms,
        ),
    )
