"""Keeps copies of sessions in memory. Each copy subscribes to its thread: after a message there, the copy is suspect,
which means that it is compared with the log before it is used."""

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from cachetools import LRUCache
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from turnlog.agent.conversations.sessions.tail import Copy
from turnlog.events.contracts import REMOVALS
from turnlog.events.personal_data_caches import holds_words
from turnlog.events.subjects import watch_subject

KEPT, OWN_IDS = 1_000, 10_000
# A subscriber gets a message before the stream has stored it; storing the message or its atomic batch may take this
# long.
SUSPECT_S = 3.0


@dataclass(slots=True)
class HotCopy:
    """A session's copy in memory. Times are seconds of the monotonic clock.

    heard_at: when another writer last published on the thread; joined_at: when the subscription began;
    checked_at: when the last comparison with the log began; connection: the number of reconnects at that time.
    """

    copy: Copy | None
    joined_at: float
    connection: int
    sub: Subscription | None = None
    heard_at: float = -math.inf
    checked_at: float = -math.inf

    def is_current(self, now: float, connection: int) -> bool:
        """Returns whether the copy can be used without asking the log, because the subscription has covered the time
        since the last check.

        A message that was published while the subscription began is not received, so one more check follows SUSPECT_S
        later.
        """
        heard_all = self.checked_at >= self.joined_at and (
            now < self.joined_at + SUSPECT_S or self.checked_at >= self.joined_at + SUSPECT_S
        )
        return heard_all and self.connection == connection and self.checked_at >= self.heard_at + SUSPECT_S


class HotCopies:
    """The copies in use. The least recently used ones are dropped first."""

    def __init__(self, nc: Client, tenant: str, keep: int = KEPT) -> None:
        self._nc, self._tenant, self._keep = nc, tenant, keep
        self._held: OrderedDict[str, HotCopy] = OrderedDict()
        self._own: LRUCache[str, None] = LRUCache(OWN_IDS)
        holds_words(self)

    def forget_all(self) -> None:
        for held in self._held.values():
            held.copy = None

    def find(self, thread: str) -> HotCopy | None:
        held = self._held.get(thread)
        if held is None or held.copy is None:
            return None
        self._held.move_to_end(thread)
        return held

    def is_current(self, held: HotCopy) -> bool:
        return self._nc.is_connected and held.is_current(time.monotonic(), self._nc.stats["reconnects"])

    async def join(self, thread: str) -> HotCopy:
        """Subscribes to a thread before its copy is read, so that a message in between makes the copy suspect."""
        if (held := self._held.get(thread)) is not None:
            return held
        held = self._held[thread] = HotCopy(None, time.monotonic(), self._nc.stats["reconnects"])
        try:
            held.sub = await self._nc.subscribe(watch_subject(self._tenant, thread), cb=self._ear(thread))
        except (NatsError, OSError):  # the connection is closed, so every read asks the log
            held.joined_at = math.inf
        while len(self._held) > self._keep:
            await self.leave(next(iter(self._held)))
        return held

    def put(self, thread: str, copy: Copy, checked_at: float | None, connection: int) -> None:
        """Stores a copy unless there is a newer one. checked_at: when its comparison with the log began."""
        held = self._held.get(thread)
        if copy.borrows or held is None or (held.copy is not None and held.copy.through > copy.through):
            return
        held.copy = copy
        if checked_at is None:
            return
        if held.connection != connection:  # messages published while the connection was lost were not received
            held.joined_at, held.connection = checked_at, connection
        held.checked_at = max(held.checked_at, checked_at)

    def forget(self, thread: str) -> None:
        """Drops the copy and keeps the subscription."""
        if (held := self._held.get(thread)) is not None:
            held.copy = None

    def doubt(self, thread: str) -> None:
        """Makes the copy suspect: for SUSPECT_S it is compared with the log before each use."""
        if (held := self._held.get(thread)) is not None:
            held.heard_at = time.monotonic()

    def now(self) -> tuple[float, int]:
        """Returns (time, reconnects), to be stored with a copy whose comparison with the log begins now."""
        return time.monotonic(), self._nc.stats["reconnects"]

    def expect(self, ids: Iterable[UUID]) -> None:
        """Registers the ids of this process's messages, which do not make the copy suspect."""
        self._own.update((str(event_id), None) for event_id in ids)

    async def leave(self, thread: str) -> None:
        held = self._held.pop(thread, None)
        if held is not None and held.sub is not None:
            with contextlib.suppress(NatsError, OSError):  # the subscription ended with its connection
                await held.sub.unsubscribe()

    async def close(self) -> None:
        await asyncio.gather(*(self.leave(thread) for thread in list(self._held)))

    def _ear(self, thread: str) -> Callable[[Msg], Awaitable[None]]:
        async def hear(msg: Msg) -> None:
            held = self._held.get(thread)
            if held is None:
                return
            if msg.subject.rsplit(".", 1)[-1] in REMOVALS:
                held.copy = None
            if (msg.headers or {}).get("Nats-Msg-Id") not in self._own:
                held.heard_at = time.monotonic()

        return hear
