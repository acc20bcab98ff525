"""Vectors for items that lack them: the embedder was away when they were put, or another model was in use.

An item's last put on the log says which texts it wants embedded; a new put of the same value and time brings their
vectors. It is appended only if nothing else happened to the namespace meanwhile, so that no newer value is undone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.models.protocol import Usage
from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph.opening import connection
from turnlog.consumers.langgraph.store.index import Wanted, wanted_texts
from turnlog.consumers.langgraph.store.ops import Key, Planner, Write
from turnlog.consumers.langgraph.store.vectors import StoreVectors
from turnlog.consumers.langgraph.store.writes import StoreWriter, metered
from turnlog.events.contracts import StoreItemPut
from turnlog.events.errors import WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.read import recorded
from turnlog.projectors.models.store.lookup import Namespace, StoredItem, items_lacking, namespaces_lacking
from turnlog.projectors.models.store.projection import store_thread

AT_ONCE = 200
TRIES = 10


@dataclass(frozen=True, slots=True)
class Reindexer:
    log: Log
    pool: Pool
    planner: Planner
    vectors: StoreVectors
    writer: StoreWriter

    async def reindex(self, prefix: Namespace) -> int:
        """Returns how many items at or below the prefix got vectors; 0 while the embedder is away."""
        async with connection(self.pool) as conn:
            lacking = await namespaces_lacking(conn, self.planner.tenant, prefix, self.vectors.embedder.model)
        return sum([await self._namespace(namespace) for namespace in lacking])

    async def _namespace(self, namespace: Namespace) -> int:
        seen: set[str] = set()
        done = tries = 0
        while tries < TRIES:
            try:
                keys, ready = await self._some(namespace, seen)
            except WrongExpectedVersion:  # somebody wrote here: look again
                tries += 1
                continue
            seen, done = seen | keys, done + ready
            if not keys:
                break
        return done

    async def _some(self, namespace: Namespace, seen: set[str]) -> tuple[set[str], int]:
        """The keys looked at, apart from `seen`, and how many got vectors; no keys when the embedder is away.

        Each is looked at once: one that wants no vectors must not be in the way of those behind it, and one whose
        event is parked would be put for ever.
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
        finally:  # it was paid for, whoever else wrote here
            await self.log.append_many([metered(tenant, thread, usage) for usage in spent])
        return {item.key for item in open_items if len(ready) == len(writes)}, len(ready)

    async def _again(self, item: StoredItem) -> Write | None:
        """The item's last put again, under this model; None when it needs no vectors."""
        put = recorded(await self.log.stored(item.seq)).event
        if not isinstance(put.data, StoreItemPut) or not put.data.vectors:
            return None
        texts = _texts(put.data, self.planner.paths)
        if not texts:
            return None
        vectors = {one.field: one.text_hash for one in texts}
        data = put.data.model_copy(update={"model": self.planner.model, "vectors": vectors})
        return Write(Key(item.namespace, item.key), self.planner.event(data, put.time), tuple(texts))


def _texts(put: StoreItemPut, paths: Sequence[str]) -> list[Wanted]:
    """The texts whose hashes the put names. A field is a path, or a path and the number of one of its texts."""
    numbered = [path for path, _, number in (field.rpartition(".") for field in put.vectors) if number.isdigit()]
    candidates = wanted_texts(put.value, dict.fromkeys([*put.vectors, *numbered, *paths]))
    return [one for one in candidates if put.vectors.get(one.field) == one.text_hash]
