"""Records the acknowledged events of each thread in order, and lets others wait for the m-th acknowledgement."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from turnlog.events.contracts import Event
from turnlog.events.publish import Appended


class Ledger:
    """The ledger of one run. threads: the acknowledged (event, sequence) pairs of each thread."""

    def __init__(self) -> None:
        self.threads: defaultdict[str, list[tuple[Event, int]]] = defaultdict(list)
        self.count = self.last_seq = self.retries = self.conflicts = self.repeats = 0
        self.moved: list[str] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def acknowledge(self, events: Sequence[Event], results: Sequence[Appended]) -> None:
        for event, appended in zip(events, results, strict=True):
            assert event.id == appended.event_id
            self.threads[event.thread].append((event, appended.seq))
            self.last_seq = max(self.last_seq, appended.seq)
        self.count += len(events)
        for number, future in self._waiting:
            if number <= self.count and not future.done():
                future.set_result(None)
        self._waiting = [pending for pending in self._waiting if not pending[1].done()]

    def repeated(self, first: Sequence[Appended], again: Sequence[Appended]) -> None:
        """Checks that events that were sent again got the same sequences as before."""
        self.repeats += len(first)
        for old, new in zip(first, again, strict=True):
            if (old.event_id, old.seq) != (new.event_id, new.seq):
                self.moved.append(f"event {old.event_id} was acknowledged at {old.seq} and again at {new.seq}")

    async def reached(self, number: int) -> None:
        """Waits for this number of acknowledgements."""
        if number <= self.count:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((number, future))
        await future

    @property
    def ids(self) -> set[UUID]:
        return {event.id for thread in self.threads.values() for event, _ in thread}
