"""TurnlogSaver: LangGraph's checkpointer on the event log, where every message is stored once.

A put appends events (the new turns, then the checkpoint that refers to them) and returns when the log has them;
projectors fill the tables. A read needs no table as long as the log has exactly the events that this saver wrote or
read.
"""

import asyncio
import contextlib
import copy
import functools
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.checkpoint.allowed import TypeNotAllowed, allow_list
from turnlog.consumers.langgraph.checkpoint.caught_up import all_applied, log_state, thread_applied
from turnlog.consumers.langgraph.checkpoint.checkpoints import (
    ROOT,
    Saved,
    checkpoint_tuple,
    config_of,
    place_of,
    plain_metadata,
    user_of,
    without_turns,
)
from turnlog.consumers.langgraph.checkpoint.held_threads import HeldThread, Threads
from turnlog.consumers.langgraph.checkpoint.items import Codec
from turnlog.consumers.langgraph.checkpoint.lookup import Lookup
from turnlog.consumers.langgraph.checkpoint.maintenance import (
    copy_thread,
    drops_of_all_but_the_newest,
    drops_of_runs,
    user_of_thread,
)
from turnlog.consumers.langgraph.checkpoint.sending import NotWritten, Sender
from turnlog.consumers.langgraph.checkpoint.writing import SOURCE, NewCheckpoint, Writer
from turnlog.consumers.langgraph.opening import connection, in_background, opened_for
from turnlog.consumers.sync_bridge import (
    blocking,
    in_own_loop,
    iterated_blocking,
    iterated_in_own_loop,
    waited_for,
)
from turnlog.events.contracts import Event, EventData, ThreadDeleted
from turnlog.events.errors import WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.subjects import check_conversation, check_tenant, parse_stored
from turnlog.projectors.models.conversation.thread_lookup import Overview, thread_overview

logger = logging.getLogger("turnlog.consumers")
HELD_THREADS = 256
T = TypeVar("T")
STRATEGIES = ("keep_latest", "delete")


class TurnlogSaver(BaseCheckpointSaver[str]):
    """LangGraph's BaseCheckpointSaver over a Log and a pool of connections, for one tenant.

    Make it inside a running event loop; its async methods may be awaited in any event loop. The projectors must run
    somewhere: in `turnlog up`, or by `TurnlogSaver.open`.
    allowed: types, as classes or (module, name), that may also be created from unsigned values, besides those that
    LangGraph's serializer considers safe. Values of other types are signed with the log's signer, and read if the
    signature matches. prune: True begins runs without the messages that turnlog pruned from the conversation, so that
    the next checkpoint lacks them, as after a RemoveMessage. The reactors of `turnlog up` prune by
    MEMORY_MAX_MESSAGES_PER_THREAD. config["configurable"]["user_id"]: the owner of a thread's data. held_threads: how
    many threads are held in memory. With an EncryptedSerializer, messages are stored only encrypted, so no turns
    are recorded; it encrypts the values of all channels, but not metadata, which `list` filters by.

    Methods raise TurnlogErrors: LogUnavailable, DatabaseUnavailable, NotProjectedInTime, ThreadParked, EventTooLarge,
    TypeNotAllowed, NotWritten for a write that builds on a failed one, InvalidToken for ids that cannot be stored and
    for names of turnlog's own threads, and LoopClosed after the end of `open`.
    """

    def __init__(
        self,
        log: Log,
        pool: Pool,
        tenant: str = "default",
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[type | tuple[str, str]] = (),
        prune: bool = False,
        held_threads: int = HELD_THREADS,
    ) -> None:
        self._allowed = allow_list(allowed)
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=tuple(self._allowed)))
        self.loop = asyncio.get_running_loop()
        self._log, self._pool, self._tenant = log, pool, check_tenant(tenant)
        self._threads = Threads(tenant, held_threads)
        self._sender = Sender(log)
        self._lookup = Lookup(log, pool, tenant, prune)
        self.prunes = prune

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        settings: Settings | None = None,
        *,
        tenant: str | None = None,
        project: bool = True,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[type | tuple[str, str]] = (),
        prune: bool = False,
    ) -> AsyncIterator[Self]:
        """Opens a saver with all it needs: servers, tables and, unless another process runs them, projectors.

        Raises TurnlogErrors.
        """
        async with opened_for(settings, tenant, project) as (log, pool, chosen):
            yield cls(log, pool, chosen, serde=serde, allowed=allowed, prune=prune)

    @classmethod
    @contextlib.contextmanager
    def open_sync(
        cls,
        settings: Settings | None = None,
        *,
        tenant: str | None = None,
        project: bool = True,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[type | tuple[str, str]] = (),
        prune: bool = False,
    ) -> Iterator[Self]:
        """Opens a saver like `open`, for a script without an event loop; the saver runs its own in a separate
        thread.
        """
        opening = cls.open(settings, tenant=tenant, project=project, serde=serde, allowed=allowed, prune=prune)
        with in_background(opening) as saver:
            yield saver

    @property
    def is_closed(self) -> bool:
        return self._log.is_closed

    @property
    def _codec(self) -> Codec:
        signer = self._log.signer
        sign = functools.partial(signer.value_signature, self._tenant) if signer is not None else None
        return Codec(self.serde, self._allowed, sign)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Adds types to the allow-list. LangGraph calls this under LANGGRAPH_STRICT_MSGPACK with the types of a graph's
        state."""
        clone = copy.copy(super().with_allowlist(extra_allowlist))
        assert isinstance(clone, type(self))
        clone._allowed = self._allowed | frozenset(extra_allowlist)
        return clone

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Returns the next version, which sorts by number; its random end distinguishes two forks of one checkpoint."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{secrets.token_hex(8)}"

    @in_own_loop
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, ns, checkpoint_id = place_of(config)
        held = self._threads.get(thread)
        held.asked(ns)
        await self._look_for_deletion(held)
        if checkpoint_id is None:
            saved = await self._lookup.newest(held, ns)
        else:
            saved = await self._lookup.at(held, ns, checkpoint_id)
        if saved is not None:
            held.given(saved.checkpoint_id)
        if saved is not None and checkpoint_id is None and ns == ROOT:
            saved = without_turns(saved, held.pruned)
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
        async for saved in self._lookup.checkpoints(config, filter, before, limit):
            try:
                loaded = self._tuple(saved, None)
            except TypeNotAllowed as error:
                if config is not None:
                    raise
                logger.warning("checkpoint %s of thread %r is left out: %s", saved.checkpoint_id, saved.thread, error)
            else:
                yield loaded

    @in_own_loop
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint; returns when the log has it and its new turns."""
        thread, ns, parent_id = place_of(config)
        held = await self._ready(thread)
        deletion = await self._last_deletion(held)
        callers = metadata.get("parents", {}).values()
        if held.builds_on_deleted(checkpoint["id"], *callers, *([parent_id] if parent_id else ())):
            raise NotWritten.after_deletion(thread)
        snapshots = [name for name, value in checkpoint["channel_values"].items() if isinstance(value, _DeltaSnapshot)]
        if snapshots and ns == ROOT and not held.is_history_read:
            await self.aget_delta_channel_history(config=config, channels=snapshots)
            held.is_history_read = True
        put = NewCheckpoint(ns, parent_id, checkpoint, plain_metadata(config, metadata), new_versions)
        async with self._unless_deleted(held):
            with held.putting(ns, checkpoint["id"]):
                events, saved = _or_forgotten(held, lambda: self._writer(held, config).checkpoint(put))
                held.put(ns, saved.checkpoint_id)
                versions = dict(checkpoint["channel_versions"])
                await self._sender.put(held, events, lambda: held.saved(saved, versions), deletion)
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
            raise NotWritten.after_failure(thread)
        if ns == ROOT and held.recorded.expects_messages:
            await held.after(checkpoint_id)
        indexed = [(WRITES_IDX_MAP.get(channel, at), channel, value) for at, (channel, value) in enumerate(writes)]
        writer = self._writer(held, config)
        events, written, is_replacing = _or_forgotten(
            held, lambda: writer.writes(ns, checkpoint_id, task_id, task_path, indexed)
        )
        # Asked after the values were serialised, because the graph may change them during the request.
        deletion = await self._last_deletion(held)
        if held.builds_on_deleted(checkpoint_id):
            held.begin(None)
            raise NotWritten.after_deletion(thread)
        failures = held.failures
        if ns == ROOT and len(events) > 1:
            await held.after(checkpoint_id)
        if held.failures != failures or held.builds_on_lost(ns, checkpoint_id):
            raise NotWritten.after_failure(thread)
        async with self._unless_deleted(held):
            done = functools.partial(held.wrote, ns, checkpoint_id, written, is_replacing)
            await self._sender.put(held, events, done, deletion)

    @in_own_loop
    async def adelete_thread(self, thread_id: str) -> None:
        """Removes the conversation and its transcript from every read model; the log keeps its events."""
        thread = check_conversation(str(thread_id))
        head = await self._log.thread_head(self._tenant, thread)
        if head and parse_stored((await self._log.stored(head)).subject).type != ThreadDeleted().type:
            await self._change(thread, [ThreadDeleted()])
            await self._look_for_deletion(self._threads.get(thread))

    @in_own_loop
    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        if not run_ids:
            return
        async with connection(self._pool) as conn:
            await all_applied(self._log, conn)
            drops = await drops_of_runs(conn, self._tenant, [str(id_) for id_ in run_ids])
        for thread, dropped in drops.items():
            await self._change(thread, dropped)

    @in_own_loop
    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread. The target gets its own turns, so deleting the source does not change it."""
        source, target = str(source_thread_id), str(target_thread_id)
        if source == target:
            return
        held = await self._ready(target)
        try:
            async with connection(self._pool) as conn:
                user = await user_of_thread(conn, self._tenant, source)
            await copy_thread(self._lookup, self._sender, source, held, self._codec, user)
        except BaseException:
            held.begin(None)
            raise

    @in_own_loop
    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Drops checkpoints. keep_latest: the newest checkpoint of each namespace stays; delete: does what
        adelete_thread does.

        Raises TypeError for a single str, ValueError for another strategy, NotImplementedError if keep_latest meets a
        DeltaChannel, whose state is made of its older checkpoints.
        """
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids must be a sequence of thread IDs, not a str")
        if strategy not in STRATEGIES:
            raise ValueError(f"Unknown prune strategy: {strategy!r}; there are {', '.join(STRATEGIES)}")
        threads = list(dict.fromkeys(str(id_) for id_ in thread_ids))
        if strategy == "delete":
            for thread in threads:
                check_conversation(thread)
            for thread in threads:
                await self.adelete_thread(thread)
            return
        async with connection(self._pool) as conn:
            for thread in threads:
                partition = (await log_state(self._log, self._tenant, thread)).partition
                if partition is not None:
                    await thread_applied(self._log, conn, self._tenant, thread, partition)
            drops = await drops_of_all_but_the_newest(conn, self._tenant, threads)
        for thread, dropped in drops.items():
            await self._change(thread, dropped)

    @in_own_loop
    async def aoverview(self, thread_id: str) -> Overview:
        """Returns the conversation's summary, topics and pruning from the current tables."""
        async with connection(self._pool) as conn:
            return await thread_overview(conn, self._tenant, thread_id)

    get_tuple = blocking(aget_tuple)
    list = iterated_blocking(alist)
    put = blocking(aput)
    put_writes = blocking(aput_writes)
    delete_thread = blocking(adelete_thread)
    delete_for_runs = blocking(adelete_for_runs)
    copy_thread = blocking(acopy_thread)
    prune = blocking(aprune)
    overview = blocking(aoverview)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return waited_for(self, self.aget_delta_channel_history(config=config, channels=channels))

    async def _change(self, thread: str, changes: Sequence[EventData]) -> None:
        held = self._threads.get(thread)
        events = [Event(source=SOURCE, tenant=self._tenant, thread=thread, data=change) for change in changes]
        await self._sender.put(held, events, lambda: held.begin(None))

    async def _ready(self, thread: str) -> HeldThread:
        """Returns the held thread; if necessary it is read first, so that its messages are not recorded again."""
        held = self._threads.get(thread)
        while not held.is_ready:
            await self._lookup.newest(held, ROOT)
        return held

    async def _look_for_deletion(self, held: HeldThread) -> int:
        """Returns the sequence of the thread's last deletion on the log; 0 if there is none."""
        sequence = await self._log.thread_head(self._tenant, held.thread, ThreadDeleted().type)
        held.saw_deletion(sequence)
        return sequence

    async def _last_deletion(self, held: HeldThread) -> int:
        """Returns the last deletion that this process knows, and asks the log only if it knows of none yet."""
        return await self._look_for_deletion(held) if held.deletion is None else held.deletion

    @contextlib.asynccontextmanager
    async def _unless_deleted(self, held: HeldThread) -> AsyncIterator[None]:
        """Raises NotWritten if the log refuses the block's events because the thread was deleted after the last look.
        A run looks when it reads its first checkpoint; looking before each put would take a request each time."""
        try:
            yield
        except WrongExpectedVersion:
            await self._look_for_deletion(held)
            raise NotWritten.after_deletion(held.thread) from None

    def _writer(self, held: HeldThread, config: RunnableConfig) -> Writer:
        return Writer(held, self._codec, user_of(config))

    def _tuple(self, saved: Saved, held: HeldThread | None) -> CheckpointTuple:
        recorded = held.recorded if held is not None else None
        return checkpoint_tuple(saved, self._codec, recorded, self.get_next_version)


def _or_forgotten(held: HeldThread, work: Callable[[], T]) -> T:
    """Runs the work. Forgets the thread if a value cannot be written, because parts of it may already be held."""
    try:
        return work()
    except BaseException:
        held.begin(None)
        raise
