"""The writes of calls that came together: embed what is new, append one batch, wait until it can be read."""

from collections.abc import Sequence

from turnlog.agent.models.protocol import Usage
from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph.opening import connection
from turnlog.consumers.langgraph.store.ops import SOURCE, Write
from turnlog.consumers.langgraph.store.vectors import StoreVectors
from turnlog.events.contracts import Event, StoreItemPut
from turnlog.events.log import Log
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.registry import find

STORE = find("store_items").name


class StoreWriter:
    """vectors: None where nothing is embedded."""

    def __init__(self, log: Log, pool: Pool, vectors: StoreVectors | None) -> None:
        self._log, self._pool, self._vectors = log, pool, vectors

    async def write(self, calls: Sequence[Sequence[Write]]) -> list[None]:
        """Raises InvalidIndex, DatabaseUnavailable, LogUnavailable, LogFull: then nothing of the batch is stored.

        Raises NotProjectedInTime where all is stored but no projector shows it.
        """
        await self.append([write for call in calls for write in call])
        return [None] * len(calls)

    async def append(self, writes: Sequence[Write], expected: int | None = None) -> None:
        """expected: as of Log.append_many."""
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
    """The event, without a model where a vector is missing: its hashes are then still to be embedded."""
    data = write.event.data
    if not isinstance(data, StoreItemPut) or all(text.text_hash in known for text in write.texts):
        return write.event
    return write.event.model_copy(update={"data": data.model_copy(update={"model": None})})


def metered(tenant: str, thread: str, usage: Usage) -> Event:
    data = usage.metered("embedding")
    return Event(source=SOURCE, tenant=tenant, thread=thread, data=data)
