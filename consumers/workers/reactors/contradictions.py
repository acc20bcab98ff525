"""The contradiction reactor: a language model compares new memories with similar ones, once they have vectors.

It works outside the answer's path and within the hourly budget. Verdicts and results are stored in one append, so that
a rebuild makes no model call and a redelivery changes nothing. If the model fails, only the rules decide, and the event
tells why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID, uuid5

from turnlog.agent.context import counter_for
from turnlog.agent.memory.deciding.memory_state import MemoryState
from turnlog.agent.memory.deciding.policy import Policy
from turnlog.agent.memory.deciding.similarity import similarity
from turnlog.agent.memory.deciding.writing import Decided, MemoriesParked, MemoryWriter, Place, Rows, utc_now
from turnlog.agent.memory.upkeep.contradictions import (
    KINDS,
    MOST,
    NAMESPACE,
    ModelVerdicts,
    comparisons,
    prompt_hash,
    request_verdicts,
    resolve,
)
from turnlog.agent.models.cached_calls import Owner, key_of, once
from turnlog.agent.models.errors import ModelError, ModelRefused
from turnlog.agent.models.protocol import ChatModel, Usage, failed_usage
from turnlog.agent.models.spending_limit import ledger
from turnlog.agent.retry_later import RetryLater
from turnlog.agent.runtime import Runtime
from turnlog.consumers.workers.durable_consumer import Delivery
from turnlog.events.contracts import (
    Comparison,
    Derivation,
    Event,
    EventData,
    MemoriesEmbedded,
    MemoryCompared,
    UsageMetered,
)
from turnlog.events.errors import InvalidEvent, InvalidToken, NotFound
from turnlog.events.stored import recorded
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.lookup import StoredMemory, memories_by_id
from turnlog.projectors.models.memories.vectors import cached_vectors, nearest

NAME = "contradictions"
LEAST_SIMILARITY = 0.3  # calibrated: about 95 % of unrelated sentences are less similar
IS_NEW = timedelta(days=7)  # older memories stay old when they get vectors of another embedding model
GIVE_UP_AFTER = timedelta(hours=1)
RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """A new memory and the earlier memories to compare it with. event_id: the id of the resulting event."""

    place: Place
    event_id: UUID
    new: StoredMemory
    earlier: Sequence[StoredMemory]

    @property
    def owner(self) -> Owner:
        return Owner(self.place.tenant, self.place.thread, self.place.user)


class ContradictionReactor:
    """Compares new memories; its durable consumer calls work() with the memories_embedded events of one thread. Raises
    RetryLater."""

    def __init__(self, runtime: Runtime, chat: ChatModel) -> None:
        self._runtime, self._chat = runtime, chat
        self._writer = MemoryWriter(runtime.log, runtime.pool)
        self._ledger = ledger(NAME, runtime.settings, is_local=False)
        self._policy, self._count = Policy.of(runtime.settings), counter_for(chat.model).text

    async def work(self, deliveries: list[Delivery]) -> None:
        for delivery in sorted(deliveries, key=lambda delivery: delivery.seq):
            try:
                event = recorded(await self._runtime.log.stored(delivery.seq)).event
                place = Place.of_thread(event.tenant, event.user or "", event.thread)
            except (InvalidEvent, InvalidToken, NotFound):
                continue  # the event was erased, the projectors park it, or the thread is not a memory thread
            assert isinstance(event.data, MemoriesEmbedded)
            for memory_id in event.data.memory_ids if place.shadow is None else ():
                await self._compare(place, event, event.data.model, memory_id)

    async def _compare(self, place: Place, event: Event, model: str, memory_id: UUID) -> None:
        try:
            task = await self._writer.read(place, partial(_task, memory_id, model, event.time))
        except MemoriesParked:
            return
        if task is None:
            return
        parts = (
            NAME,
            prompt_hash(),
            *(f"{memory.id} {memory.content}" for memory in (task.new, *task.earlier)),
        )
        key = key_of(task.owner, self._chat.model, parts)
        try:
            async with self._runtime.pool.connection() as conn:
                answer = await self._answer(conn, task, key)
        except ModelError as error:
            if not isinstance(error, ModelRefused) and utc_now() - event.time < GIVE_UP_AFTER:
                raise RetryLater(error.retry_after_s or RETRY_S, f"{error.code}: {error}") from error
            await self._store(task, (), failed_usage(self._chat, "extraction", NAME, error), key)
            return
        spent = answer.usage.metered("extraction", NAME)
        if answer.is_malformed:
            spent = spent.model_copy(update={"error": "the answer is not in the requested format"})
        await self._store(task, comparisons(answer.verdicts, task.earlier), spent, key)

    async def _answer(self, conn: Connection, task: Task, key: bytes) -> ModelVerdicts:
        async def ask() -> ModelVerdicts:
            return await request_verdicts(self._chat, task.new, task.earlier)

        estimate = sum(self._count(memory.content) for memory in (task.new, *task.earlier))
        answer = await once(conn, self._ledger, task.owner, key, estimate, ask)
        return ModelVerdicts(answer["verdicts"], answer["is_malformed"], Usage(**answer["usage"]))

    async def _store(self, task: Task, compared: Sequence[Comparison], spent: UsageMetered, key: bytes) -> None:
        """Stores the comparisons and what follows from them. It decides by the current rows, because a memory may have
        ended meanwhile."""

        async def decide(rows: Rows) -> Decided[None]:
            if await rows.stored([task.event_id]):
                return Decided([], None)
            ids = [task.new.id, *(memory.id for memory in task.earlier)]
            now = await memories_by_id(rows.conn, task.place.tenant, task.place.thread, ids)
            events: list[EventData] = [MemoryCompared(memory_id=task.new.id, error=spent.error)]
            if compared and task.new.id in now:
                known = MemoryState(task.place, now.values(), utc_now())
                events = resolve(task.new.id, known, compared, self._policy, self._derivation(task, spent))
            more = [(uuid5(task.event_id, str(n)), data) for n, data in enumerate(events[1:])]
            usage = (uuid5(task.event_id, f"usage/{key.hex()}"), spent)
            return Decided([(task.event_id, events[0]), *more, usage], None)

        await self._writer.write(task.place, decide)

    def _derivation(self, task: Task, spent: UsageMetered) -> Derivation:
        seqs = [memory.seq for memory in (task.new, *task.earlier)]
        return Derivation(
            provider=self._chat.provider,
            model=spent.model,
            prompt_hash=prompt_hash(),
            from_seq=min(seqs),
            through_seq=max(seqs),
            tokens_in=spent.tokens_in,
            tokens_out=spent.tokens_out,
            cost_usd=spent.cost_usd,
        )


async def _task(memory_id: UUID, model: str, embedded_at: datetime, rows: Rows) -> Task | None:
    """Returns the task for a memory; None if it was already compared, is not new or not valid, or no earlier memory is
    similar."""
    place, now = (rows.place.tenant, rows.place.thread), datetime.now(UTC)
    event_id = uuid5(NAMESPACE, f"{rows.place.tenant}/{rows.place.thread}@{await rows.removed_at()}/{memory_id}")
    row = (await memories_by_id(rows.conn, *place, [memory_id])).get(memory_id)
    if row is None or not _takes_part(row, now) or row.created_at < embedded_at - IS_NEW:
        return None
    vector = (await cached_vectors(rows.conn, *place, [memory_id], model)).get(memory_id)
    if vector is None or await rows.stored([event_id]):
        return None
    near = await nearest(rows.conn, *place, KINDS, vector, model)
    earlier = [
        other
        for other, cosine in near
        if (other.seq, str(other.id)) < (row.seq, str(row.id))
        and _takes_part(other, now)
        and (row.dedupe_key is None or other.dedupe_key != row.dedupe_key)
        and similarity(model, cosine, row.content, other.content) >= LEAST_SIMILARITY
    ]
    return Task(rows.place, event_id, row, earlier[:MOST]) if earlier else None


def _takes_part(row: StoredMemory, now: datetime) -> bool:
    is_over = row.expires_at is not None and row.expires_at <= now
    return row.status == "valid" and row.kind in KINDS and row.origin != "compaction" and not is_over
