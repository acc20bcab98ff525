"""What a saver holds of a thread in memory, so that a turn reads nothing back: its newest checkpoints and lists."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from langgraph.checkpoint.base.id import uuid6

from turnlog.consumers.langgraph.growth import Known
from turnlog.consumers.langgraph.interning import Interner
from turnlog.consumers.langgraph.item_list import ItemList
from turnlog.consumers.langgraph.items import Codec, Item
from turnlog.consumers.langgraph.tuples import ROOT, Saved, Written
from turnlog.consumers.langgraph.values import Listed
from turnlog.events.contracts import Event
from turnlog.events.remembered import holds_words

WriteKey = tuple[str, int]
AHEAD_THREADS = 16  # of those held, which have their next read's messages made ahead
GRACE_S = 0.25  # from one checkpoint's storing to the next one's putting, in another thread
STATE_TYPES = ("checkpoint_saved", "checkpoint_writes_saved", "checkpoints_dropped", "thread_deleted", "erased")


@dataclass(slots=True)
class Put:
    """Events that must be stored together and in order, and what is then true in memory."""

    events: list[Event]
    done: Callable[[], None]
    future: "asyncio.Future[None]"


@dataclass(slots=True)
class Held:
    """One thread. counts: events of each state type in the log, as far as this copy goes; None: it is not known.

    latest: namespace → its newest checkpoint, None for one that has none.
    namespaces: those that had checkpoints when the thread was read; None: not asked. unsure: must be read again.
    lists: (namespace, channel) → its list as stored last; older: as read last, on a look back; plain: lists that were
    no growth, by their items. newest_put: the root's newest checkpoint on its way or stored. lost: the root's first one
    that could not be stored, until another is; regained: ids from here on are of runs that began since.
    """

    tenant: str
    thread: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    queue: list[Put] = field(default_factory=list)
    sender: "asyncio.Task[None] | None" = None
    sending: bool = False
    failures: int = 0
    waiting: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    newest_put: str | None = None
    lost: str | None = None
    regained: str | None = None
    counts: dict[str, int] | None = None
    namespaces: frozenset[str] | None = None
    is_met: bool = False
    interner: Interner = field(default_factory=Interner)
    latest: dict[str, Saved | None] = field(default_factory=dict)
    writes: dict[tuple[str, str], dict[WriteKey, Written]] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    lists: dict[tuple[str, str], Known[Item]] = field(default_factory=dict)
    older: dict[tuple[str, str], Known[Item]] = field(default_factory=dict)
    plain: dict[tuple[str, str], list[object]] = field(default_factory=dict)

    def begin(self, counts: Mapping[str, int] | None) -> None:
        """Forgets all: the thread stands as the counts say, and how must be read."""
        self.counts = dict(counts) if counts is not None else None
        self.namespaces = frozenset() if counts is not None and not counts else None
        self.is_met, self.interner = False, Interner()
        self.latest, self.writes, self.unsure = {}, {}, set()
        self.lists, self.older, self.plain = {}, {}, {}

    @property
    def is_ready(self) -> bool:
        """Whether puts may refer to what the thread has: its messages were met, or there are none."""
        return self.counts is not None and (self.is_met or self.namespaces == frozenset())

    @property
    def is_busy(self) -> bool:
        return bool(self.queue) or self.waiting > 0 or self.lock.locked()

    def knows(self, ns: str) -> bool:
        if self.counts is None or self.namespaces is None or ns in self.unsure:
            return False
        return ns in self.latest or ns not in self.namespaces

    def newest(self, ns: str) -> Saved | None:
        """For a namespace that it knows."""
        saved = self.latest.get(ns)
        if saved is None:
            return None
        return replace(saved, writes=tuple(self.writes.get((ns, saved.checkpoint_id), {}).values()))

    def put(self, ns: str, checkpoint_id: str) -> None:
        """A checkpoint is on its way."""
        if ns == ROOT:
            self.newest_put = max(checkpoint_id, self.newest_put or "")
            self.stir()

    @contextlib.contextmanager
    def putting(self, ns: str, checkpoint_id: str) -> Iterator[None]:
        """What the block cannot put is lost."""
        try:
            yield
        except Exception:
            if ns == ROOT:
                self.lost, self.regained = min(checkpoint_id, self.lost or checkpoint_id), None
            raise
        if ns == ROOT:
            self.lost = self.regained = None

    def builds_on_lost(self, ns: str, checkpoint_id: str) -> bool:
        """Whether the checkpoint is a lost one, or of the same run and never put. LangGraph learns of a failed put only
        when the run's last step is done, and gives the writes of all steps until then."""
        is_later = self.regained is not None and checkpoint_id >= self.regained
        return ns == ROOT and self.lost is not None and checkpoint_id >= self.lost and not is_later

    def asked(self, ns: str) -> None:
        """Somebody reads a checkpoint, as a run does first and its subgraphs later. Ids of checkpoints sort by time."""
        if ns == ROOT and self.lost is not None and self.regained is None:
            self.regained = str(uuid6())

    def stir(self) -> None:
        """Something was put, or is stored."""
        self.moved.set()
        self.moved = asyncio.Event()

    async def after(self, checkpoint_id: str) -> None:
        """Until the root's checkpoint is on its way.

        LangGraph saves a checkpoint when the one before is stored, and meanwhile the writes that follow it: their
        turns would come before those that they answer.
        """
        self.waiting += 1
        try:
            while self.newest_put is not None and checkpoint_id > self.newest_put:
                async with asyncio.timeout(None if self.sending or self.queue else GRACE_S):
                    await self.moved.wait()
        except TimeoutError:
            return
        finally:
            self.waiting -= 1

    def read(self, ns: str, saved: Saved | None) -> None:
        """The newest checkpoint of a namespace, from the tables."""
        self.latest[ns] = saved
        self.is_met = self.is_met or ns == ROOT
        self.unsure.discard(ns)
        if saved is not None and saved.is_old:
            self.unsure.add(ns)
        if saved is not None:
            self.put(ns, saved.checkpoint_id)
            self.writes[ns, saved.checkpoint_id] = {(one.task_id, one.idx): one for one in saved.writes}

    def count(self, events: list[Event]) -> None:
        if self.counts is not None:
            for event in events:
                if event.type in STATE_TYPES:
                    self.counts[event.type] = self.counts.get(event.type, 0) + 1

    def saved(self, saved: Saved, versions: Mapping[str, object]) -> None:
        """A checkpoint was put. Values it did not bring are its parent's, if that is the newest one here."""
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
        self._forget_writes(saved)

    def wrote(self, ns: str, checkpoint_id: str, writes: list[Written], is_replacing: bool) -> None:
        known = self.writes.setdefault((ns, checkpoint_id), {})
        for one in writes:
            before = known.get((one.task_id, one.idx))
            if before is None:
                known[one.task_id, one.idx] = one
            elif is_replacing:
                known[one.task_id, one.idx] = one._replace(task_path=before.task_path)

    def make_ahead(self, codec: Codec) -> bool:
        """The messages of one list that the graph's next read begins with; whether there were any to make."""
        return any(items.make_ahead(codec) for items in self._newest_lists())

    def drop_ahead(self) -> None:
        for items in self._newest_lists():
            items.drop_ahead()

    def _newest_lists(self) -> list[ItemList]:
        saved = self.latest.get(ROOT)
        return [value.items for value in saved.values.values() if isinstance(value, Listed)] if saved else []

    def _forget_writes(self, newest: Saved) -> None:
        for ns, checkpoint_id in list(self.writes):
            if ns == newest.ns and checkpoint_id < newest.checkpoint_id:
                del self.writes[ns, checkpoint_id]


class Threads:
    """The threads held, the least recently used of them forgotten beyond a number."""

    def __init__(self, tenant: str, limit: int) -> None:
        self._tenant, self._limit = tenant, limit
        self._held: OrderedDict[str, Held] = OrderedDict()
        holds_words(self)

    def forget_all(self) -> None:
        """But for threads that are written just now: those compare themselves with the log when they are read."""
        for held in self._held.values():
            if not held.is_busy:
                held.begin(None)

    def get(self, thread: str) -> Held:
        held = self._held.setdefault(thread, Held(self._tenant, thread))
        self._held.move_to_end(thread)
        if len(self._held) > self._limit:
            self._forget_one()
        return held

    def make_ahead(self, codec: Codec) -> bool:
        """The next read's messages of one thread that was used lately; the others keep none. Whether one had any."""
        lately = list(reversed(self._held.values()))
        for held in lately[AHEAD_THREADS:]:
            held.drop_ahead()
        return any(held.make_ahead(codec) for held in lately[:AHEAD_THREADS])

    def _forget_one(self) -> None:
        idle = next((name for name, held in self._held.items() if not held.is_busy), None)
        if idle is not None:
            del self._held[idle]
