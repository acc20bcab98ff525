"""Writes items of the store: embeds new texts, appends one batch, and waits until it can be read. Adds vectors to older
items.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.models.protocol import Usage
from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph.opening import connection
from turnlog.consumers.langgraph.store.index import TextToEmbed, texts_to_embed
from turnlog.consumers.langgraph.store.ops import SOURCE, Key, Planner, Write
from turnlog.consumers.langgraph.store.vectors import StoreVectors
from turnlog.events.contracts import Event, StoreItemPut
from turnlog.events.errors import WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.stored import recorded
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.registry import find
from turnlog.projectors.models.store.lookup import Namespace, StoredItem, items_lacking, namespaces_lacking
from turnlog.projectors.models.store.projection import store_thread

STORE = find("store_items").name


class StoreWriter:
    """Writes items. vectors: None if nothing is embedded."""

    def __init__(self, log: Log, pool: Pool, vectors: StoreVectors | None) -> None:
        self._log, self._pool, self._vectors = log, pool, vectors

    async def write(self, calls: Sequence[Sequence[Write]]) -> list[None]:
        """Stores the writes of several calls. Raises InvalidIndex, DatabaseUnavailable, LogUnavailable, LogFull: then
        nothing of the batch is stored.

        Raises NotProjectedInTime if all is stored but no projector has applied it in time.
        """
        await self.append([write for call in calls for write in call])
        return [None] * len(calls)

    async def append(self, writes: Sequence[Write], expected: int | None = None) -> None:
        """Appends writes. expected: see Log.append_many."""
        spent: list[Usage] = []
        known: set[str] = set()
        if self._vectors is not None:
            known = await self._vectors.remember((text for write in writes for text in write.texts), spent)
        events = [_with_vectors(write, known) for write in writes]
        costs = [metered(events[0].tenant, events[0].thread, usage) for usage in spent]
        stored = await self._log.append_many([*events, *costs], expected)
        threads = {event.thread: done.seq for event, done in zip(events, stored, strict=False)}
        await self.applied(events[0].tenant, threads)

    async def applied(self, tenant: str, threads: dict[str, int]) -> None:
        """Waits until reads see the threads up to their sequences."""
        last: dict[int, int] = {}
        for thread, seq in threads.items():
            partition = await self._log.partition_of(tenant, thread, seq)
            last[partition] = max(last.get(partition, 0), seq)
        async with connection(self._pool) as conn:
            for partition, seq in last.items():
                await wait_for(conn, (STORE,), partition, seq)


def _with_vectors(write: Write, known: set[str]) -> Event:
    """Returns the event. If the vector of a text is missing, the event names no model; `areindex` embeds its texts
    later.
    """
    data = write.event.data
    if not isinstance(data, StoreItemPut) or all(text.text_hash in known for text in write.texts):
        return write.event
    return write.event.model_copy(update={"data": data.model_copy(update={"model": None})})


def metered(tenant: str, thread: str, usage: Usage) -> Event:
    data = usage.metered("embedding")
    return Event(source=SOURCE, tenant=tenant, thread=thread, data=data)


AT_ONCE = 200
TRIES = 10


@dataclass(frozen=True, slots=True)
class Reindexer:
    """Adds vectors to items that lack them, because the embedder was unavailable when they were put, or another model
    was in use.

    An item's last put on the log says which texts to embed; a new put with the same value and time brings their
    vectors. It is appended only if nothing else happened to the namespace in the meantime, so that no newer value is
    undone.
    """

    log: Log
    pool: Pool
    planner: Planner
    vectors: StoreVectors
    writer: StoreWriter

    async def reindex(self, prefix: Namespace) -> int:
        """Adds vectors to items at or below the prefix, and returns how many got them; 0 while the embedder is
        unavailable.
        """
        async with connection(self.pool) as conn:
            lacking = await namespaces_lacking(conn, self.planner.tenant, prefix, self.vectors.embedder.model)
        return sum([await self._namespace(namespace) for namespace in lacking])

    async def _namespace(self, namespace: Namespace) -> int:
        seen: set[str] = set()
        done = tries = 0
        while tries < TRIES:
            try:
                keys, ready = await self._some(namespace, seen)
            except WrongExpectedVersion:  # somebody else wrote here, so look again
                tries += 1
                continue
            seen, done = seen | keys, done + ready
            if not keys:
                break
        return done

    async def _some(self, namespace: Namespace, seen: set[str]) -> tuple[set[str], int]:
        """Returns the keys examined, apart from `seen`, and how many got vectors; no keys if the embedder is
        unavailable.

        Each key is examined once. So a key that needs no vectors does not block later keys, and a key whose event is
        parked is not put again and again.
        """
        tenant, thread, model = self.planner.tenant, store_thread(namespace), self.vectors.embedder.model
        head = await self.log.thread_head(tenant, thread)
        await self.writer.applied(tenant, {thread: head})
        async with connection(self.pool) as conn:
            items = await items_lacking(conn, tenant, namespace, model)
        open_items = [item for item in items if item.key not in seen][:AT_ONCE]
        writes = [write for item in open_items if (write := await self._again(item))]
        spent: list[Usage] = []
        known = await self.vectors.remember((text for write in writes for text in write.texts), spent)
        ready = [write for write in writes if known.issuperset(text.text_hash for text in write.texts)]
        try:
            if ready:
                await self.writer.append(ready, expected=head)
        finally:  # keep the vectors, which were paid for, even if others wrote here
            await self.log.append_many([metered(tenant, thread, usage) for usage in spent])
        return {item.key for item in open_items if len(ready) == len(writes)}, len(ready)

    async def _again(self, item: StoredItem) -> Write | None:
        """Returns the item's last put again, under this model; None if it needs no vectors."""
        put = recorded(await self.log.stored(item.seq)).event
        if not isinstance(put.data, StoreItemPut) or not put.data.vectors:
            return None
        texts = _texts(put.data, self.planner.paths)
        if not texts:
            return None
        vectors = {text.field: text.text_hash for text in texts}
        data = put.data.model_copy(update={"model": self.planner.model, "vectors": vectors})
        return Write(Key(item.namespace, item.key), self.planner.event(data, put.time), tuple(texts))


def _texts(put: StoreItemPut, paths: Sequence[str]) -> list[TextToEmbed]:
    """Returns the texts whose hashes the put contains. A field is a path, or a path and the number of one of its
    texts.
    """
    numbered = [path for path, _, number in (field.rpartition(".") for field in put.vectors) if number.isdigit()]
    candidates = texts_to_embed(put.value, dict.fromkeys([*put.vectors, *numbered, *paths]))
    return [candidate for candidate in candidates if put.vectors.get(candidate.field) == candidate.text_hash]
