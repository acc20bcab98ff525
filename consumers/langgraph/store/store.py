"""TurnlogStore: LangGraph's long-term store on the event log, with search by meaning.

Every put is an event with the whole value; reads use the projection store_items. A put returns when that projection has
applied it, so that later reads see it, in this process or another one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from itertools import accumulate
from typing import Generic, Literal, Self, TypeVar

from langgraph.store.base import BaseStore, IndexConfig, Item, Op, Result, SearchItem

from turnlog.agent.models.factory import make_embedder
from turnlog.agent.models.protocol import Embedder
from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings, application_settings
from turnlog.consumers.langgraph.opening import connection, in_background, opened_for
from turnlog.consumers.langgraph.store.index import GivenEmbedder, fields_of
from turnlog.consumers.langgraph.store.ops import Key, Planner, Search, Write, last_writes
from turnlog.consumers.langgraph.store.vectors import StoreVectors
from turnlog.consumers.langgraph.store.writes import Reindexer, StoreWriter
from turnlog.consumers.sync_bridge import in_own_loop, waited_for
from turnlog.events.append import MAX_BATCH
from turnlog.events.log import Log
from turnlog.events.subjects import check_tenant
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.store.lookup import (
    ItemSearch,
    NamespaceListing,
    StoredItem,
    items_by_key,
    list_namespaces,
    search_items,
)

Index = IndexConfig | Literal[False] | None
Read = Key | ItemSearch | NamespaceListing
READS_AT_ONCE = 4  # connections
In = TypeVar("In", bound=Sized)
Out = TypeVar("Out")


class Grouped(Generic[In, Out]):
    """Passes all waiting calls to `run`, in order of arrival; calls that arrive in the meantime wait for the next run.

    LangGraph's AsyncBatchedBaseStore groups calls too, but there a bad call fails the whole group, its methods can be
    awaited in only one event loop, reads wait for writes, and it cannot be closed.

    at_once: maximum number of concurrent runs. at_most: maximum number of operations in a run, so that they fit into
    one atomic batch of the log; a call is never divided. run returns one result per call; if it raises, all of them
    fail.
    """

    def __init__(
        self, run: Callable[[list[In]], Awaitable[list[Out]]], at_once: int = 1, at_most: int = MAX_BATCH
    ) -> None:
        self._run, self._at_once, self._at_most = run, at_once, at_most
        self._waiting: list[tuple[In, asyncio.Future[Out]]] = []
        self._workers: set[asyncio.Task[None]] = set()

    async def do(self, call: In) -> Out:
        future: asyncio.Future[Out] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        if len(self._workers) < self._at_once:
            self._workers.add(asyncio.create_task(self._work()))
        return await future

    async def idle(self) -> None:
        """Waits until all calls are done."""
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while self._waiting:
                count = self._fitting()
                taken, self._waiting = self._waiting[:count], self._waiting[count:]
                await self._run_for([(call, future) for call, future in taken if not future.done()])
        finally:  # no await since it saw that no call waits, so that do() cannot rely on this worker, which ends
            self._workers = {worker for worker in self._workers if worker is not asyncio.current_task()}

    def _fitting(self) -> int:
        """Returns how many of the first calls fit into a run; at least one."""
        sizes = accumulate(len(call) for call, _ in self._waiting)
        return max(1, sum(1 for size in sizes if size <= self._at_most))

    async def _run_for(self, asked: list[tuple[In, "asyncio.Future[Out]"]]) -> None:
        """Runs the calls, except those of cancelled callers."""
        futures = [future for _, future in asked]
        try:
            results = await self._run([call for call, _ in asked])
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        except Exception as error:  # passed on to the waiting callers
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        else:
            for future, result in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(result)


class TurnlogStore(BaseStore):
    """LangGraph's BaseStore over a Log and a pool of connections, for one tenant.

    index: what is embedded, and by which embedder, as LangGraph's IndexConfig (with `model`, see StoreIndexConfig);
    None: the whole value, by the embedder of turnlog's settings, which needs no key; False: nothing, and `query` is
    ignored. Make it inside a running event loop. The projectors must run somewhere: in `turnlog up`, or by
    `TurnlogStore.open`.

    If the embedder is unavailable, items are stored without vectors, searches return the newest items first without
    scores (`degraded` says why), and `areindex` later embeds the missing texts. TTL is not supported, because every
    removal is an event: a put with a `ttl` raises NotImplementedError.
    """

    supports_ttl = False

    def __init__(
        self, log: Log, pool: Pool, tenant: str = "default", *, index: Index = None, settings: Settings | None = None
    ) -> None:
        """Makes a store on a log and a pool. settings: settings of the default embedder; by default from the
        environment. Raises InvalidIndex."""
        super().__init__()
        self.log, self.pool, self.loop = log, pool, asyncio.get_running_loop()
        self._embedder = _embedder(index, settings)
        self._vectors = StoreVectors(pool, self._embedder, verify=bool(index)) if self._embedder else None
        model = self._embedder.model if self._embedder else None
        self._tenant = check_tenant(tenant)
        self._planner = Planner(self._tenant, model, fields_of(index or None), log.nc.max_payload)
        self.index_config: IndexConfig | None = index or None
        self._writer = StoreWriter(log, pool, self._vectors)
        self._reads = Grouped[Sequence[Read], list[Result]](self._results, READS_AT_ONCE)
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
        """Opens a store with all it needs: servers, tables and, unless another process runs them, projectors.

        Raises TurnlogErrors.
        """
        chosen = settings or application_settings()
        async with opened_for(chosen, tenant, project) as (log, pool, whose):
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
        """Opens a store like `open`, for a script without an event loop; the store runs its own in a separate
        thread.
        """
        with in_background(cls.open(settings, tenant=tenant, project=project, index=index)) as store:
            yield store

    @property
    def is_closed(self) -> bool:
        return self.log.is_closed

    @property
    def degraded(self) -> str | None:
        """Returns why the last text got no vector; None if it got one."""
        return self._vectors.degraded if self._vectors else None

    async def aclose(self) -> None:
        """Waits for running reads and writes, and closes turnlog's embedder; log and pool belong to the caller."""
        await self._writes.idle()
        await self._reads.idle()
        if self._embedder is not None:
            await self._embedder.close()

    @in_own_loop
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs operations; all are checked first. Reads see the state before the call; of several puts to one key the
        last wins. May be awaited in any event loop. Raises TurnlogErrors, InvalidNamespaceError."""
        plans = [self._planner.plan(op) for op in ops]
        results: list[Result] = [None] * len(plans)
        reads = {at: plan for at, plan in enumerate(plans) if not isinstance(plan, Write)}
        if reads:
            asked = await asyncio.gather(*(self._with_vector(plan) for plan in reads.values()))
            for at, result in zip(reads, await self._reads.do(asked), strict=True):
                results[at] = result
        if writes := last_writes(plan for plan in plans if isinstance(plan, Write)):
            await self._writes.do(writes)
        return results

    @in_own_loop
    async def areindex(self, namespace_prefix: tuple[str, ...] = ()) -> int:
        """Embeds texts without vectors of items at or below the prefix, which were put while the embedder was
        unavailable or under another model. Returns how many items got vectors. Raises TurnlogErrors."""
        if self._vectors is None:
            return 0
        return await Reindexer(self.log, self.pool, self._planner, self._vectors, self._writer).reindex(
            tuple(namespace_prefix)
        )

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs abatch from threads other than the event loop's. Raises WrongThread there, LoopClosed after `open`."""
        return waited_for(self, self.abatch(list(ops)))

    async def _with_vector(self, plan: Read | Search) -> Read:
        """Returns the read; a search gets the vector of its query, unless the embedder is unavailable."""
        if not isinstance(plan, Search):
            return plan
        near = await self._vectors.near(plan.query) if self._vectors and plan.query else None
        return replace(plan.lookup, near=near)

    async def _results(self, calls: Sequence[Sequence[Read]]) -> list[list[Result]]:
        """Returns the results of a group of calls, read on one connection: all items by key in one query, then the
        others."""
        places = [(read.namespace, read.key) for call in calls for read in call if isinstance(read, Key)]
        async with connection(self.pool) as conn:
            items = await items_by_key(conn, self._tenant, places) if places else {}
            return [[await self._result(conn, read, items) for read in call] for call in calls]

    async def _result(
        self, conn: Connection, read: Read, items: dict[tuple[tuple[str, ...], str], StoredItem]
    ) -> Result:
        match read:
            case Key(namespace, key):
                item = items.get((namespace, key))
                if item is None:
                    return None
                return Item(
                    value=item.value,
                    key=item.key,
                    namespace=item.namespace,
                    created_at=item.created_at,
                    updated_at=item.updated_at,
                )
            case ItemSearch():
                return [
                    SearchItem(hit.namespace, hit.key, hit.value, hit.created_at, hit.updated_at, score=hit.score)
                    for hit in await search_items(conn, self._tenant, read)
                ]
            case NamespaceListing():
                return await list_namespaces(conn, self._tenant, read)


def _embedder(index: Index, settings: Settings | None) -> Embedder | None:
    if index is False:
        return None
    return GivenEmbedder(index) if index else make_embedder(settings or application_settings())
