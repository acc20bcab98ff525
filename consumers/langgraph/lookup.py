"""One checkpoint, from memory where that is still what the log says, else from the tables once they have caught up."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from turnlog.consumers.langgraph.catching_up import PROJECTIONS, refuse_parked
from turnlog.consumers.langgraph.first_look import NEWEST, ONE, Look, first_look
from turnlog.consumers.langgraph.growth import Known
from turnlog.consumers.langgraph.held import Held
from turnlog.consumers.langgraph.item_list import ItemList
from turnlog.consumers.langgraph.items import Item
from turnlog.consumers.langgraph.reading import Found, complete
from turnlog.consumers.langgraph.store_database import connection
from turnlog.consumers.langgraph.thread_state import LogState, log_state
from turnlog.consumers.langgraph.tuples import ROOT, Saved
from turnlog.consumers.langgraph.values import Listed, Refs
from turnlog.consumers.runtime import Pool
from turnlog.events.log import Log
from turnlog.projectors.lag import wait_for

STEPS_TO_ASK = 3  # of the event loop, until a question is on its way
T = TypeVar("T")


class Lookup:
    """Every method raises LogUnavailable, DatabaseUnavailable, NotProjectedInTime, ThreadParked."""

    def __init__(self, log: Log, pool: Pool, tenant: str) -> None:
        self._log, self._pool, self._tenant = log, pool, tenant
        self._ahead = set[asyncio.Task[Look]]()

    async def newest(self, held: Held, ns: str, make: Callable[[Saved], T]) -> T | None:
        """What is made of the namespace's newest checkpoint with its writes; nothing is sent meanwhile, so both agree.

        The log mostly says that nobody else wrote: what is held is made while the question is under way.
        """
        async with held.lock:
            latest = held.latest.get(ns)
            likely = held.newest(ns) if held.knows(ns) else None
            meanwhile = partial(make, likely) if likely is not None else _nothing
            looking, state, made = await self._compared(held, NEWEST, {"ns": ns}, meanwhile)
            if held.knows(ns):
                return made if held.latest.get(ns) is latest else None
            found = await self._read(held, state, NEWEST, {"ns": ns}, looking)
            saved = found.saved[0] if found.saved else None
            held.read(ns, saved)
            if saved is None:
                return None
            _adopt(held, saved, found, held.lists)
            return make(saved)

    async def at(self, held: Held, ns: str, checkpoint_id: str) -> Saved | None:
        async with held.lock:
            looking, state, _ = await self._compared(held, ONE, {"ns": ns, "id": checkpoint_id}, _nothing)
            if held.knows(ns):
                newest = held.newest(ns)
                if newest is None or newest.checkpoint_id == checkpoint_id:
                    return newest
            found = await self._read(held, state, ONE, {"ns": ns, "id": checkpoint_id}, looking)
            if not found.saved:
                return None
            held.is_met = held.is_met or ns == ROOT
            _adopt(held, found.saved[0], found, held.older)
            return found.saved[0]

    async def _compared(
        self, held: Held, which: str, named: dict[str, Any], meanwhile: Callable[[], T]
    ) -> "tuple[asyncio.Task[Look] | None, LogState, T]":
        """What is held goes when the log has other events than those that it is made of.

        Of a thread of which nothing is held Postgres is asked at the same time. Where the log then says that there is
        nothing to read, that answer is left alone: without Postgres a new thread begins all the same.
        """
        looking = self._look_ahead(held, which, named) if held.counts is None else None
        asked = asyncio.create_task(log_state(self._log, self._tenant, held.thread))
        try:
            for _ in range(STEPS_TO_ASK):
                await asyncio.sleep(0)
            done, state = meanwhile(), await asked
        finally:
            asked.cancel()
        if held.counts != state.counts:
            held.begin(state.counts)
        return looking, state, done

    def _look_ahead(self, held: Held, which: str, named: dict[str, Any]) -> "asyncio.Task[Look]":
        looking = asyncio.create_task(self._look(held, which, named, True))
        self._ahead.add(looking)
        looking.add_done_callback(self._looked)
        return looking

    def _looked(self, looking: "asyncio.Task[Look]") -> None:
        self._ahead.discard(looking)
        if not looking.cancelled():
            looking.exception()  # told to those who wait for it; nobody else misses it

    async def _look(self, held: Held, which: str, named: dict[str, Any], asks: bool) -> Look:
        async with connection(self._pool) as conn:
            return await first_look(conn, which, asks, {"tenant": self._tenant, "thread": held.thread, **named})

    async def _read(
        self, held: Held, state: LogState, which: str, named: dict[str, Any], looking: "asyncio.Task[Look] | None"
    ) -> Found:
        partition, asks = state.partition or 0, held.namespaces is None
        look = await (looking or self._look(held, which, named, asks))
        if look.reached.get(partition, 0) < state.last_seq:  # not all of the log; perhaps all of the thread
            head = await self._log.thread_head(self._tenant, held.thread)
            if look.reached.get(partition, 0) < head:
                async with connection(self._pool) as conn:
                    await wait_for(conn, PROJECTIONS, partition, head)
                look = await self._look(held, which, named, asks)
        refuse_parked(held.thread, look.parked)
        if look.namespaces is not None:
            held.namespaces = look.namespaces
        raws = [look.raw] if look.raw is not None else []
        return await complete(partial(connection, self._pool), self._tenant, [partition], raws, look.fetched)


def _nothing() -> None:
    """To do while the log is asked."""


def _adopt(held: Held, saved: Saved, found: Found, lists: dict[tuple[str, str], Known[Item]]) -> None:
    """Puts go on from what was read: its lists, and its messages by their ids."""
    for (channel, _), value in saved.values.items():
        if isinstance(value, Listed) and len(value.items) >= value.length:
            known = Known(found.sources[value.list_id], ItemList(value.items[: value.length]))
            lists[saved.ns, channel] = known
    for value in (*saved.values.values(), *(one.value for one in saved.writes)):
        if isinstance(value, Listed | Refs):
            held.interner.adopt(item for item in value.items if item is not None)
