"""One checkpoint, from memory where that is still what the log says, else from the tables once they have caught up."""

from typing import Any

from turnlog.consumers.langgraph.catching_up import PROJECTIONS, refuse_parked
from turnlog.consumers.langgraph.first_look import NEWEST, ONE, first_look
from turnlog.consumers.langgraph.growth import Known
from turnlog.consumers.langgraph.held import Held
from turnlog.consumers.langgraph.items import Item
from turnlog.consumers.langgraph.reading import Found, complete
from turnlog.consumers.langgraph.store_database import connection
from turnlog.consumers.langgraph.thread_state import LogState, log_state
from turnlog.consumers.langgraph.tuples import ROOT, Saved
from turnlog.consumers.langgraph.values import Listed, Refs
from turnlog.consumers.runtime import Pool
from turnlog.events.log import Log
from turnlog.projectors.lag import wait_for


class Lookup:
    """Every method raises LogUnavailable, DatabaseUnavailable, NotProjectedInTime, ThreadParked."""

    def __init__(self, log: Log, pool: Pool, tenant: str) -> None:
        self._log, self._pool, self._tenant = log, pool, tenant

    async def newest(self, held: Held, ns: str) -> Saved | None:
        """The namespace's newest checkpoint with its writes; nothing is sent meanwhile, so both agree."""
        async with held.lock:
            state = await self._compared(held)
            if held.knows(ns):
                return held.newest(ns)
            found = await self._read(held, state, NEWEST, {"ns": ns})
            saved = found.saved[0] if found.saved else None
            held.read(ns, saved)
            if saved is not None:
                _adopt(held, saved, found, held.lists)
            return saved

    async def at(self, held: Held, ns: str, checkpoint_id: str) -> Saved | None:
        async with held.lock:
            state = await self._compared(held)
            if held.knows(ns):
                newest = held.newest(ns)
                if newest is None or newest.checkpoint_id == checkpoint_id:
                    return newest
            found = await self._read(held, state, ONE, {"ns": ns, "id": checkpoint_id})
            if not found.saved:
                return None
            held.is_met = held.is_met or ns == ROOT
            _adopt(held, found.saved[0], found, held.older)
            return found.saved[0]

    async def _compared(self, held: Held) -> LogState:
        """What is held goes when the log has other events than those that it is made of."""
        state = await log_state(self._log, self._tenant, held.thread)
        if held.counts != state.counts:
            held.begin(state.counts)
        return state

    async def _read(self, held: Held, state: LogState, which: str, named: dict[str, Any]) -> Found:
        partition = state.partition or 0
        asked = {"tenant": self._tenant, "thread": held.thread, **named}
        async with connection(self._pool) as conn:
            look = await first_look(conn, which, held.namespaces is None, asked)
            if look.reached.get(partition, 0) < state.last_seq:  # not all of the log; perhaps all of the thread
                head = await self._log.thread_head(self._tenant, held.thread)
                if look.reached.get(partition, 0) < head:
                    await wait_for(conn, PROJECTIONS, partition, head)
                    look = await first_look(conn, which, held.namespaces is None, asked)
            refuse_parked(held.thread, look.parked)
            if look.namespaces is not None:
                held.namespaces = look.namespaces
            return await complete(conn, self._tenant, [partition], [look.raw] if look.raw is not None else [])


def _adopt(held: Held, saved: Saved, found: Found, lists: dict[tuple[str, str], Known[Item]]) -> None:
    """Puts go on from what was read: its lists, and its messages by their ids."""
    for (channel, _), value in saved.values.items():
        if isinstance(value, Listed) and len(value.items) >= value.length:
            known = Known(found.sources[value.list_id], list(value.items[: value.length]))
            lists[saved.ns, channel] = known
    for value in (*saved.values.values(), *(one.value for one in saved.writes)):
        if isinstance(value, Listed | Refs):
            held.interner.adopt(item for item in value.items if item is not None)
