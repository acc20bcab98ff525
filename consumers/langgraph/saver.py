"""TurnlogSaver: LangGraph's checkpointer on the event log, where every message is stored once.

A put is events (the new turns, then the checkpoint that names them) and returns when the log has them; projectors make
the tables of them. Reading needs no table as long as the log says that nobody else wrote.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph import opening
from turnlog.consumers.langgraph.catching_up import all_applied, thread_applied
from turnlog.consumers.langgraph.copying import copy_thread
from turnlog.consumers.langgraph.dropping import (
    but_the_newest,
    checkpoints_of_runs,
    namespaces_of,
    threads_with_deltas,
)
from turnlog.consumers.langgraph.held import Held, Threads
from turnlog.consumers.langgraph.idle import Idle
from turnlog.consumers.langgraph.items import Codec
from turnlog.consumers.langgraph.listing import Listing
from turnlog.consumers.langgraph.lookup import Lookup
from turnlog.consumers.langgraph.metadata import place_of, plain_metadata, user_of
from turnlog.consumers.langgraph.own_loop import in_own_loop, iterated_in_own_loop
from turnlog.consumers.langgraph.sending import NotWritten, Sender
from turnlog.consumers.langgraph.store_database import connection
from turnlog.consumers.langgraph.sync_face import SyncFace
from turnlog.consumers.langgraph.thread_state import log_state
from turnlog.consumers.langgraph.tuples import ROOT, Saved, checkpoint_tuple, config_of
from turnlog.consumers.langgraph.writing import SOURCE, NewCheckpoint, Writer
from turnlog.consumers.runtime import Pool
from turnlog.events.contracts import Event, EventData, ThreadDeleted
from turnlog.events.langgraph_contracts import CheckpointsDropped
from turnlog.events.log import Log
from turnlog.events.subjects import check_conversation, check_tenant, parse_stored

HELD_THREADS = 256
T = TypeVar("T")
STRATEGIES = ("keep_latest", "delete")


class TurnlogSaver(SyncFace):
    """LangGraph's BaseCheckpointSaver over a Log and a pool of connections, for one tenant.

    Make it inside a running event loop; its async methods may be awaited in any. Something must run the projectors
    (`turnlog up`, or `TurnlogSaver.open`).
    config["configurable"]["user_id"] says whose data a thread is. held_threads: so many are held in memory.
    With an EncryptedSerializer nothing is stored in the clear, so no turns are recorded.

    Methods raise TurnlogErrors: LogUnavailable, DatabaseUnavailable, NotProjectedInTime, ThreadParked, EventTooLarge,
    InvalidToken for ids that no store can hold, and for names of turnlog's own threads. Closed after the end of `open`.
    """

    def __init__(
        self,
        log: Log,
        pool: Pool,
        tenant: str = "default",
        *,
        serde: SerializerProtocol | None = None,
        held_threads: int = HELD_THREADS,
    ) -> None:
        super().__init__(serde=serde)
        self.loop = asyncio.get_running_loop()
        self._log, self._pool, self._tenant = log, pool, check_tenant(tenant)
        self._threads = Threads(tenant, held_threads)
        self._sender = Sender(log)
        self._lookup = Lookup(log, pool, tenant)
        self._listing = Listing(log, pool, tenant)
        self._idle = Idle(partial(self._threads.make_ahead, Codec(self.serde)))

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        settings: Settings | None = None,
        *,
        tenant: str | None = None,
        project: bool = True,
        serde: SerializerProtocol | None = None,
    ) -> AsyncIterator[Self]:
        """A saver with all it needs: servers, tables and, unless another process has them, projectors.

        Raises TurnlogErrors.
        """
        async with opening.opened_for(settings, tenant, project) as (log, pool, chosen):
            yield cls(log, pool, chosen, serde=serde)

    @classmethod
    @contextlib.contextmanager
    def open_sync(
        cls,
        settings: Settings | None = None,
        *,
        tenant: str | None = None,
        project: bool = True,
        serde: SerializerProtocol | None = None,
    ) -> Iterator[Self]:
        """As `open`, for a script without an event loop: the saver has one of its own, in a thread of its own."""
        with opening.in_background(cls.open(settings, tenant=tenant, project=project, serde=serde)) as saver:
            yield saver

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Sorts by number; the random end keeps two forks of one checkpoint apart."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{secrets.token_hex(8)}"

    @in_own_loop
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, ns, checkpoint_id = place_of(config)
        held = self._threads.get(thread)
        held.asked(ns)
        with self._idle.busy():
            if checkpoint_id is None:
                return await self._lookup.newest(held, ns, lambda saved: self._tuple(saved, held))
            saved = await self._lookup.at(held, ns, checkpoint_id)
            return None if saved is None else self._tuple(saved, held)

    @iterated_in_own_loop
    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        async for saved in self._listing.checkpoints(config, filter, before, limit):
            yield self._tuple(saved, None)

    @in_own_loop
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Returns when the log has the checkpoint and the turns that are new in it."""
        thread, ns, parent_id = place_of(config)
        held = await self._ready(thread)
        put = NewCheckpoint(ns, parent_id, checkpoint, plain_metadata(config, metadata), new_versions)
        with self._idle.busy(), held.putting(ns, checkpoint["id"]):
            events, saved = _or_forgotten(held, lambda: self._writer(held, config).checkpoint(put))
            held.put(ns, saved.checkpoint_id)
            versions = dict(checkpoint["channel_versions"])
            await self._sender.put(held, events, lambda: held.saved(saved, versions))
        return config_of(config["configurable"]["thread_id"], ns, checkpoint["id"])

    @in_own_loop
    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        thread, ns, checkpoint_id = place_of(config)
        if not writes or checkpoint_id is None:
            return
        held = await self._ready(thread)
        if held.builds_on_lost(ns, checkpoint_id):
            raise _behind(thread)
        given = [(WRITES_IDX_MAP.get(channel, at), channel, value) for at, (channel, value) in enumerate(writes)]
        writer = self._writer(held, config)
        events, written, is_replacing = _or_forgotten(
            held, lambda: writer.writes(ns, checkpoint_id, task_id, task_path, given)
        )
        failures = held.failures
        if ns == ROOT and len(events) > 1:
            await held.after(checkpoint_id)
        if held.failures != failures or held.builds_on_lost(ns, checkpoint_id):
            raise _behind(thread)
        with self._idle.busy():
            await self._sender.put(held, events, lambda: held.wrote(ns, checkpoint_id, written, is_replacing))

    @in_own_loop
    async def adelete_thread(self, thread_id: str) -> None:
        """The conversation goes from every read model, its transcript too; the log keeps its events."""
        thread = check_conversation(str(thread_id))
        head = await self._log.thread_head(self._tenant, thread)
        if head and parse_stored((await self._log.stored(head)).subject).type != ThreadDeleted().type:
            await self._change(thread, [ThreadDeleted()])

    @in_own_loop
    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        if not run_ids:
            return
        async with connection(self._pool) as conn:
            await all_applied(self._log, conn)
            found = await checkpoints_of_runs(conn, self._tenant, [str(one) for one in run_ids])
        for thread in dict.fromkeys(thread for thread, _, _ in found):
            own = [
                CheckpointsDropped(checkpoint_ns=ns, checkpoint_ids=ids, reason="run")
                for of, ns, ids in found
                if of == thread
            ]
            await self._change(thread, own)

    @in_own_loop
    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """The target gets turns of its own; deleting the source leaves it whole."""
        source, target = str(source_thread_id), str(target_thread_id)
        if source == target:
            return
        held = await self._ready(target)
        try:
            user = await self._user_of(source)
            await copy_thread(self._listing, self._sender, source, held, Codec(self.serde), user)
        except BaseException:
            held.begin(None)
            raise

    @in_own_loop
    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """keep_latest: of each namespace the newest checkpoint stays; delete: as adelete_thread.

        Raises TypeError for a single str, ValueError for another strategy, NotImplementedError where keep_latest meets
        a DeltaChannel, whose state is made of its older checkpoints.
        """
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids must be a sequence of thread IDs, not a str")
        if strategy not in STRATEGIES:
            raise ValueError(f"Unknown prune strategy: {strategy!r}; there are {', '.join(STRATEGIES)}")
        threads = list(dict.fromkeys(str(one) for one in thread_ids))
        if strategy == "delete":
            for thread in threads:
                check_conversation(thread)
            for thread in threads:
                await self.adelete_thread(thread)
            return
        plans = await self._all_but_the_newest(threads)
        for thread, dropped in plans.items():
            await self._change(thread, dropped)

    async def _all_but_the_newest(self, threads: Sequence[str]) -> Mapping[str, list[EventData]]:
        async with connection(self._pool) as conn:
            for thread in threads:
                partition = (await log_state(self._log, self._tenant, thread)).partition
                if partition is not None:
                    await thread_applied(self._log, conn, self._tenant, thread, partition)
            if deltas := await threads_with_deltas(conn, self._tenant, threads):
                raise NotImplementedError(
                    f"keep_latest can't prune threads that use a DeltaChannel: {', '.join(deltas)}"
                )
            found = {thread: but_the_newest(await namespaces_of(conn, self._tenant, thread)) for thread in threads}
        return {
            thread: [
                CheckpointsDropped(checkpoint_ns=ns, checkpoint_ids=ids, reason="prune") for ns, ids in dropped.items()
            ]
            for thread, dropped in found.items()
            if dropped
        }

    async def _change(self, thread: str, changes: Sequence[EventData]) -> None:
        held = self._threads.get(thread)
        events = [
            Event(source=SOURCE, time=datetime.now(UTC), tenant=self._tenant, thread=thread, data=change)
            for change in changes
        ]
        await self._sender.put(held, events, lambda: held.begin(None))

    async def _ready(self, thread: str) -> Held:
        """The thread as it is held; one that is not is looked up, so that its messages are not recorded again."""
        held = self._threads.get(thread)
        while not held.is_ready:
            await self._lookup.newest(held, ROOT, lambda saved: saved)
        return held

    async def _user_of(self, thread: str) -> str | None:
        async with connection(self._pool) as conn:
            rows = await conn.execute(
                "SELECT user_id FROM messages WHERE tenant = %s AND thread_id = %s AND user_id IS NOT NULL LIMIT 1",
                (self._tenant, thread),
            )
            found = await rows.fetchone()
        return str(found[0]) if found else None

    def _writer(self, held: Held, config: RunnableConfig) -> Writer:
        return Writer(held, Codec(self.serde), user_of(config))

    def _tuple(self, saved: Saved, held: Held | None) -> CheckpointTuple:
        interner = held.interner if held is not None else None
        return checkpoint_tuple(saved, Codec(self.serde), interner, self.get_next_version)


def _behind(thread: str) -> NotWritten:
    return NotWritten(f"writes to thread {thread!r} build on one that failed; run it again")


def _or_forgotten(held: Held, work: Callable[[], T]) -> T:
    """A value that cannot be written leaves half of it behind in memory."""
    try:
        return work()
    except BaseException:
        held.begin(None)
        raise
