"""TurnlogStore: LangGraph's long-term store on the event log, with search by meaning.

Every put is an event with the whole value; the projection store_items is what reads see. A put returns when that
projection has applied it, so that what comes after sees it, in this process or in another.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, Self

from langgraph.store.base import BaseStore, IndexConfig, Op, Result

from turnlog.agent.models.factory import make_embedder
from turnlog.agent.models.protocol import Embedder
from turnlog.agent.settings import Settings, load_settings
from turnlog.consumers.langgraph import opening
from turnlog.consumers.langgraph.own_loop import WrongThread, in_own_loop, refuse_closed, waited_for
from turnlog.consumers.langgraph.store_embedder import GivenEmbedder
from turnlog.consumers.langgraph.store_grouping import Grouped
from turnlog.consumers.langgraph.store_index import fields_of
from turnlog.consumers.langgraph.store_ops import Planner, Search, Write, last_writes
from turnlog.consumers.langgraph.store_reads import Read, StoreReader
from turnlog.consumers.langgraph.store_reindex import Reindexer
from turnlog.consumers.langgraph.store_vectors import StoreVectors
from turnlog.consumers.langgraph.store_writes import StoreWriter
from turnlog.consumers.runtime import Pool
from turnlog.events.log import Log
from turnlog.events.subjects import check_tenant

Index = IndexConfig | Literal[False] | None
READS_AT_ONCE = 4  # connections


class TurnlogStore(BaseStore):
    """LangGraph's BaseStore over a Log and a pool of connections, for one tenant.

    index: what is embedded and by what, as LangGraph's IndexConfig (with `model`, see StoreIndexConfig); None: the
    whole value, by the embedder of turnlog's settings, which needs no key; False: nothing, `query` is then ignored.
    Make it inside a running event loop; something must run the projectors (`turnlog up`, or `TurnlogStore.open`).

    When the embedder is away items are stored without vectors, searches fall back to the newest first without
    scores (`degraded` says why), and `areindex` embeds later what was left out. TTL is not supported: what leaves
    the store leaves it by an event, and a put with a `ttl` raises NotImplementedError.
    """

    supports_ttl = False

    def __init__(
        self, log: Log, pool: Pool, tenant: str = "default", *, index: Index = None, settings: Settings | None = None
    ) -> None:
        """settings: of the default embedder; those of the environment if not given. Raises InvalidIndex."""
        super().__init__()
        self.log, self.pool, self.loop = log, pool, asyncio.get_running_loop()
        self._embedder = _embedder(index, settings)
        self._vectors = StoreVectors(pool, self._embedder, verify=bool(index)) if self._embedder else None
        model = self._embedder.model if self._embedder else None
        self._planner = Planner(check_tenant(tenant), model, fields_of(index or None), log.nc.max_payload)
        self.index_config: IndexConfig | None = index or None
        self._writer = StoreWriter(log, pool, self._vectors)
        self._reads = Grouped[Sequence[Read], list[Result]](StoreReader(pool, tenant).read, READS_AT_ONCE)
        self._writes = Grouped[Sequence[Write], None](self._writer.write)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        settings: Settings | None = None,
        *,
        tenant: str | None = None,
        project: bool = True,
        index: Index = None,
    ) -> AsyncIterator[Self]:
        """A store with all it needs: servers, tables and, unless another process has them, projectors.

        Raises TurnlogErrors.
        """
        chosen = settings or load_settings()
        async with opening.opened_for(chosen, tenant, project) as (log, pool, whose):
            store = cls(log, pool, whose, index=index, settings=chosen)
            try:
                yield store
            finally:
                await store.aclose()

    @classmethod
    @contextlib.contextmanager
    def open_sync(
        cls,
        settings: Settings | None = None,
        *,
        tenant: str | None = None,
        project: bool = True,
        index: Index = None,
    ) -> Iterator[Self]:
        """As `open`, for a script without an event loop: the store has one of its own, in a thread of its own."""
        with opening.in_background(cls.open(settings, tenant=tenant, project=project, index=index)) as store:
            yield store

    @property
    def is_closed(self) -> bool:
        return self.log.is_closed

    @property
    def degraded(self) -> str | None:
        """Why the last text got no vector; None when it got one."""
        return self._vectors.degraded if self._vectors else None

    async def aclose(self) -> None:
        """Waits for writes under way and closes turnlog's embedder; log and pool belong to the caller."""
        await self._writes.idle()
        await self._reads.idle()
        if self._embedder is not None:
            await self._embedder.close()

    @in_own_loop
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """All operations are checked first. Reads see what was there before the call; of several puts to one key
        the last wins. May be awaited in any event loop. Raises TurnlogErrors, InvalidNamespaceError.
        """
        plans = [self._planner.plan(op) for op in ops]
        results: list[Result] = [None] * len(plans)
        reads = {at: plan for at, plan in enumerate(plans) if not isinstance(plan, Write)}
        if reads:
            asked = await asyncio.gather(*(self._read(plan) for plan in reads.values()))
            for at, result in zip(reads, await self._reads.do(asked), strict=True):
                results[at] = result
        if writes := last_writes(plan for plan in plans if isinstance(plan, Write)):
            await self._writes.do(writes)
        return results

    @in_own_loop
    async def areindex(self, namespace_prefix: tuple[str, ...] = ()) -> int:
        """Embeds what items at or below the prefix lack: they were put while the embedder was away, or under another
        model. Returns how many items got vectors. Raises TurnlogErrors.
        """
        if self._vectors is None:
            return 0
        return await Reindexer(self.log, self.pool, self._planner, self._vectors, self._writer).reindex(
            tuple(namespace_prefix)
        )

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """abatch for other threads than the event loop's. Raises WrongThread on that one, and Closed after `open`."""
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is self.loop:
                refuse_closed(self)
                raise WrongThread(
                    "a synchronous call of TurnlogStore in its own event loop would wait for itself; "
                    "await the method whose name begins with `a`, such as `await store.aget(...)`"
                )
        return waited_for(self, self.abatch(list(ops)))

    async def _read(self, plan: Read | Search) -> Read:
        """A search gets the vector of its query, if it can have one."""
        if not isinstance(plan, Search):
            return plan
        near = await self._vectors.near(plan.query) if self._vectors and plan.query else None
        return replace(plan.lookup, near=near)


def _embedder(index: Index, settings: Settings | None) -> Embedder | None:
    if index is False:
        return None
    return GivenEmbedder(index) if index else make_embedder(settings or load_settings())
