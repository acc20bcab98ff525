"""Keeps the newest checkpoints and lists of a saver's threads in memory, so that a turn need not read them back."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from weakref import WeakValueDictionary

from langgraph.checkpoint.base.id import uuid6

from turnlog.consumers.langgraph.checkpoint.caught_up import STATE_TYPES
from turnlog.consumers.langgraph.checkpoint.checkpoints import ROOT, Saved, Written
from turnlog.consumers.langgraph.checkpoint.growth import Known
from turnlog.consumers.langgraph.checkpoint.items import Item
from turnlog.consumers.langgraph.checkpoint.recorded import RecordedMessages
from turnlog.events.contracts import Event
from turnlog.events.errors import WrongExpectedVersion
from turnlog.events.personal_data_caches import holds_words

WriteKey = tuple[str, int]
GRACE_S = 0.25  # longest wait for the next checkpoint after one was stored; LangGraph puts it from another thread


@dataclass(slots=True)
class Put:
    """Events that must be stored together and in order, and the state in memory afterwards.

    deletion: sequence of the thread's last deletion known to the writer; after a later one, nothing is stored.
    """

    events: list[Event]
    done: Callable[[], None]
    future: "asyncio.Future[None]"
    deletion: int | None = None


@dataclass(slots=True, weakref_slot=True, eq=False)
class HeldThread:
    """The copy of a thread in memory.

    counts: the number of events, by type, in the log from which this copy was made; None: unknown. namespaces: the
    namespaces that had checkpoints when the thread was read; None: not read. latest: namespace → its newest checkpoint;
    None if it has none. unsure: namespaces that must be read again.

    lists: (namespace, channel) → the list as last stored. older: the list as last read from an older checkpoint. plain:
    the items of the last value that was not stored as a growing list. pruned: event ids of turns in the lists that were
    pruned from the conversation. is_history_read: True if the messages in the writes of older checkpoints are known
    too; a DeltaChannel's snapshot is made of them.

    newest_put: id of the root's newest checkpoint that is stored or being sent. lost: id of the root's first checkpoint
    that could not be stored; None once a later one is stored. regained: checkpoints from this id on belong to runs that
    began after the loss. deletion: sequence of the last known deletion of the thread. alive_from: checkpoints before
    this id were made before that deletion. refused: later checkpoints that build on those.
    """

    tenant: str
    thread: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    queue: list[Put] = field(default_factory=list)
    sender: "asyncio.Task[None] | None" = None
    failures: int = 0
    waiting: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    newest_put: str | None = None
    lost: str | None = None
    regained: str | None = None
    counts: dict[str, int] | None = None
    namespaces: frozenset[str] | None = None
    is_read: bool = False
    recorded: RecordedMessages = field(default_factory=RecordedMessages)
    latest: dict[str, Saved | None] = field(default_factory=dict)
    writes: dict[tuple[str, str], dict[WriteKey, Written]] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    lists: dict[tuple[str, str], Known[Item]] = field(default_factory=dict)
    older: dict[tuple[str, str], Known[Item]] = field(default_factory=dict)
    plain: dict[tuple[str, str], list[object]] = field(default_factory=dict)
    pruned: frozenset[str] = frozenset()
    is_history_read: bool = False
    deletion: int | None = None
    alive_from: str = ""
    refused: set[str] = field(default_factory=set)

    def begin(self, counts: Mapping[str, int] | None) -> None:
        """Empties the copy, so that the thread is read again. counts: the thread's current counts of events."""
        self.counts = dict(counts) if counts is not None else None
        self.namespaces = frozenset() if counts is not None and not counts else None
        self.is_read, self.recorded = False, RecordedMessages()
        self.is_history_read = self.namespaces == frozenset()
        self.latest, self.writes, self.unsure = {}, {}, set()
        self.lists, self.older, self.plain, self.pruned = {}, {}, {}, frozenset()

    @property
    def is_ready(self) -> bool:
        """Returns whether puts may refer to the thread's items, because its messages were read or it has none."""
        return self.counts is not None and (self.is_read or self.namespaces == frozenset())

    @property
    def is_busy(self) -> bool:
        return self.is_sending or self.waiting > 0 or self.lock.locked()

    @property
    def is_sending(self) -> bool:
        return self.sender is not None and not self.sender.done()

    def knows(self, ns: str) -> bool:
        if self.counts is None or self.namespaces is None or ns in self.unsure:
            return False
        return ns in self.latest or ns not in self.namespaces

    def newest(self, ns: str) -> Saved | None:
        """Returns the newest checkpoint of a namespace, for which knows() must be true."""
        saved = self.latest.get(ns)
        if saved is None:
            return None
        return replace(saved, writes=tuple(self.writes.get((ns, saved.checkpoint_id), {}).values()))

    def put(self, ns: str, checkpoint_id: str) -> None:
        """Records that a checkpoint is being sent."""
        if ns == ROOT:
            self.newest_put = max(checkpoint_id, self.newest_put or "")
            self.stir()

    @contextlib.contextmanager
    def putting(self, ns: str, checkpoint_id: str) -> Iterator[None]:
        """Marks the checkpoint as lost if the block fails to put it, except after a deletion, which ends its run
        anyway.
        """
        try:
            yield
        except WrongExpectedVersion:
            raise
        except Exception:
            if ns == ROOT:
                self.lost, self.regained = min(checkpoint_id, self.lost or checkpoint_id), None
            raise
        if ns == ROOT:
            self.lost = self.regained = None

    def builds_on_lost(self, ns: str, checkpoint_id: str) -> bool:
        """Returns whether the checkpoint is lost or follows a lost one of the same run. LangGraph notices a failed put
        only at the end of the run's last step, and until then it puts the writes of all steps."""
        is_later = self.regained is not None and checkpoint_id >= self.regained
        return ns == ROOT and self.lost is not None and checkpoint_id >= self.lost and not is_later

    def saw_deletion(self, sequence: int) -> None:
        """Records a deletion. sequence: that of the thread's last deletion on the log; 0 if there is none."""
        if self.deletion is not None and sequence > self.deletion:
            self.alive_from = str(uuid6())
        self.deletion = sequence

    def builds_on_deleted(self, checkpoint_id: str, *parents: str) -> bool:
        """Returns True if the checkpoint belongs to a run that began before the thread was deleted, and remembers it,
        so that its children are recognised too."""
        is_late = any(id_ < self.alive_from or id_ in self.refused for id_ in (checkpoint_id, *parents))
        if is_late:
            self.refused.add(checkpoint_id)
        return is_late

    def given(self, checkpoint_id: str) -> None:
        """Records that a run was given this checkpoint: it exists, so another process made it after the deletion."""
        self.alive_from = min(self.alive_from, checkpoint_id)

    def asked(self, ns: str) -> None:
        """Records that a checkpoint is read. A new run first reads the root's checkpoint, so later ids, which sort by
        time, belong to it."""
        if ns == ROOT and self.lost is not None and self.regained is None:
            self.regained = str(uuid6())

    def stir(self) -> None:
        """Wakes up after(), because something was put or stored."""
        self.moved.set()
        self.moved = asyncio.Event()

    async def after(self, checkpoint_id: str) -> None:
        """Waits until the root's checkpoint is being sent; gives up after GRACE_S in which nothing is sent.

        LangGraph puts a checkpoint only after the previous one is stored, but may already put the writes that follow
        it. Without this wait, their turns would be in the log before the turns that they answer.
        """
        self.waiting += 1
        try:
            while self.newest_put is None or checkpoint_id > self.newest_put:
                async with asyncio.timeout(None if self.is_sending else GRACE_S):
                    await self.moved.wait()
        except TimeoutError:
            return
        finally:
            self.waiting -= 1

    def read(self, ns: str, saved: Saved | None) -> None:
        """Remembers the newest checkpoint of a namespace, as read from the tables."""
        self.latest[ns] = saved
        self.is_read = self.is_read or ns == ROOT
        self.unsure.discard(ns)
        if saved is not None and saved.is_old:
            self.unsure.add(ns)
        if saved is not None:
            self.put(ns, saved.checkpoint_id)
            self.writes[ns, saved.checkpoint_id] = {(write.task_id, write.idx): write for write in saved.writes}

    def count(self, events: list[Event]) -> None:
        if self.counts is not None:
            for event in events:
                if event.type in STATE_TYPES:
                    self.counts[event.type] = self.counts.get(event.type, 0) + 1

    def saved(self, saved: Saved, versions: Mapping[str, object]) -> None:
        """Remembers a checkpoint that was put. Values that it lacks are taken from its parent, if the parent is the
        newest checkpoint here; otherwise the namespace is read again."""
        if not self.knows(saved.ns):
            return
        last = self.latest.get(saved.ns)
        if last is not None and saved.checkpoint_id < last.checkpoint_id:
            return
        if last is not None and saved.checkpoint_id == last.checkpoint_id:
            saved = replace(saved, parent_id=last.parent_id)
        elif saved.is_old or saved.parent_id != (last.checkpoint_id if last is not None else None):
            self.unsure.add(saved.ns)
            return
        values = {**saved.values, **last.values} if last is not None else saved.values
        wanted = ((channel, str(version)) for channel, version in versions.items())
        self.latest[saved.ns] = replace(saved, values={key: values[key] for key in wanted if key in values})
        for ns, checkpoint_id in list(self.writes):
            if ns == saved.ns and checkpoint_id < saved.checkpoint_id:
                del self.writes[ns, checkpoint_id]

    def wrote(self, ns: str, checkpoint_id: str, writes: list[Written], is_replacing: bool) -> None:
        known = self.writes.setdefault((ns, checkpoint_id), {})
        for write in writes:
            before = known.get((write.task_id, write.idx))
            if before is None:
                known[write.task_id, write.idx] = write
            elif is_replacing:
                known[write.task_id, write.idx] = write._replace(task_path=before.task_path)


class Threads:
    """Holds threads in memory: the most recently used ones, up to a limit, and all that are in use."""

    def __init__(self, tenant: str, limit: int) -> None:
        self._tenant = tenant
        self._held: WeakValueDictionary[str, HeldThread] = WeakValueDictionary()
        self._recent = lru_cache(limit)(self._found)
        holds_words(self)

    def get(self, thread: str) -> HeldThread:
        return self._recent(thread)

    def forget_all(self) -> None:
        """Forgets all threads except those being written, which are compared with the log when they are read."""
        for held in list(self._held.values()):
            if not held.is_busy:
                held.begin(None)

    def _found(self, thread: str) -> HeldThread:
        return self._held.setdefault(thread, HeldThread(self._tenant, thread))
