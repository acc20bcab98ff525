"""Looks up checkpoints: one from memory or the tables, or all that match a config and a filter, newest first.

A copy in memory is current if the log has exactly the events it was made of; otherwise the tables are read, once they
have caught up with the log.
"""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import get_checkpoint_id
from psycopg.types.json import Jsonb

from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph.checkpoint.caught_up import (
    PROJECTIONS,
    LogState,
    all_applied,
    log_state,
    thread_applied,
)
from turnlog.consumers.langgraph.checkpoint.checkpoints import ROOT, Saved
from turnlog.consumers.langgraph.checkpoint.growth import Known
from turnlog.consumers.langgraph.checkpoint.held_threads import HeldThread
from turnlog.consumers.langgraph.checkpoint.items import Item
from turnlog.consumers.langgraph.checkpoint.queries import NEWEST, ONE
from turnlog.consumers.langgraph.checkpoint.reading import (
    FoundCheckpoint,
    Look,
    complete,
    first_look,
    stored_checkpoints,
)
from turnlog.consumers.langgraph.checkpoint.values import Listed, Refs
from turnlog.consumers.langgraph.opening import connection
from turnlog.events.log import Log
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.parking import refuse_parked
from turnlog.projectors.models.conversation.message import thread_messages
from turnlog.projectors.models.conversation.thread_lookup import pruned_through

PAGE = 50
Key = tuple[str, str, str]


class Lookup:
    """Looks up checkpoints. Every method raises LogUnavailable, DatabaseUnavailable, NotProjectedInTime,
    ThreadParked."""

    def __init__(self, log: Log, pool: Pool, tenant: str, prunes: bool) -> None:
        self._log, self._pool, self._tenant, self._prunes = log, pool, tenant, prunes

    async def newest(self, held: HeldThread, ns: str) -> Saved | None:
        """Returns the namespace's newest checkpoint with its writes. Nothing is sent in the meantime, so they belong
        together."""
        async with held.lock:
            state = await self._compared(held)
            if held.knows(ns):
                return held.newest(ns)
            checkpoints = await self._read(held, state, NEWEST, {"ns": ns})
            saved = checkpoints.saved[0] if checkpoints.saved else None
            held.read(ns, saved)
            if saved is not None:
                _adopt(held, saved, checkpoints, held.lists)
                if self._prunes and ns == ROOT:
                    held.pruned = await self._pruned(saved)
            return saved

    async def _pruned(self, saved: Saved) -> frozenset[str]:
        """Returns the turns in the checkpoint's lists that turnlog pruned; summary, topics and vectors cover them."""
        async with connection(self._pool) as conn:
            through = await pruned_through(conn, self._tenant, saved.thread)
            if not through:
                return frozenset()
            kept = {
                str(message.event_id) for message in await thread_messages(conn, self._tenant, saved.thread, through)
            }
        lists = (value.items for value in saved.values.values() if isinstance(value, Listed))
        return frozenset(item.marker["turn"] for items in lists for item in items if "turn" in item.marker) - kept

    async def at(self, held: HeldThread, ns: str, checkpoint_id: str) -> Saved | None:
        async with held.lock:
            state = await self._compared(held)
            if held.knows(ns):
                newest = held.newest(ns)
                if newest is None or newest.checkpoint_id == checkpoint_id:
                    return newest
            checkpoints = await self._read(held, state, ONE, {"ns": ns, "id": checkpoint_id})
            if not checkpoints.saved:
                return None
            held.is_read = held.is_read or ns == ROOT
            _adopt(held, checkpoints.saved[0], checkpoints, held.older)
            return checkpoints.saved[0]

    async def checkpoints(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncIterator[Saved]:
        where, named = conditions(config, filter, before)
        await self._caught_up(named.get("thread"))
        keys = await self._keys(where, {**named, "tenant": self._tenant, "limit": limit})
        async for saved in self._in_pages(keys):
            yield saved

    async def oldest_first(self, thread: str) -> AsyncIterator[Saved]:
        """Yields every checkpoint of a thread."""
        await self._caught_up(thread)
        named = {"tenant": self._tenant, "thread": thread, "limit": None}
        keys = await self._keys(" AND thread_id = %(thread)s", named)
        async for saved in self._in_pages(keys[::-1]):
            yield saved

    async def _in_pages(self, keys: list[Key]) -> AsyncIterator[Saved]:
        for start in range(0, len(keys), PAGE):
            page = keys[start : start + PAGE]
            checkpoints = await self._page(page)
            for key in page:
                if key in checkpoints:
                    yield checkpoints[key]

    async def _caught_up(self, thread: str | None) -> None:
        partition = (await log_state(self._log, self._tenant, thread)).partition if thread is not None else None
        async with connection(self._pool) as conn:
            if thread is None:
                await all_applied(self._log, conn)
            elif partition is not None:
                await thread_applied(self._log, conn, self._tenant, thread, partition)

    async def _keys(self, where: str, named: Mapping[str, Any]) -> list[Key]:
        sql = (
            f"SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints WHERE tenant = %(tenant)s{where} "
            "ORDER BY checkpoint_id DESC, thread_id, checkpoint_ns LIMIT %(limit)s"
        )
        async with connection(self._pool) as conn:
            return [(row[0], row[1], row[2]) for row in await (await conn.execute(sql.encode(), named)).fetchall()]

    async def _page(self, page: list[Key]) -> dict[Key, Saved]:
        checkpoints: dict[Key, Saved] = {}
        connect = partial(connection, self._pool)
        for thread in dict.fromkeys(key[0] for key in page):
            own = [key for key in page if key[0] == thread]
            where = (
                "AND c.thread_id = %(thread)s AND (c.checkpoint_ns, c.checkpoint_id) IN "
                "(SELECT * FROM unnest(%(namespaces)s::text[], %(ids)s::text[]))"
            )
            named = {"thread": thread, "namespaces": [ns for _, ns, _ in own], "ids": [id_ for *_, id_ in own]}
            async with connect() as conn:
                stored = await stored_checkpoints(conn, self._tenant, where, named)
            complete_ones = await complete(connect, self._tenant, range(self._log.partitions), stored)
            checkpoints |= {(saved.thread, saved.ns, saved.checkpoint_id): saved for saved in complete_ones.saved}
        return checkpoints

    async def _compared(self, held: HeldThread) -> LogState:
        """Returns the thread's state in the log; empties the copy in memory if it was made of other events."""
        state = await log_state(self._log, self._tenant, held.thread)
        if held.counts != state.counts:
            held.begin(state.counts)
        return state

    async def _read(self, held: HeldThread, state: LogState, which: str, named: dict[str, Any]) -> FoundCheckpoint:
        partition = state.partition or 0
        look = await self._look(held, which, named)
        if (
            look.reached.get(partition, 0) < state.last_seq
        ):  # the tables lack part of the log, but perhaps nothing of this thread
            head = await self._log.thread_head(self._tenant, held.thread)
            if look.reached.get(partition, 0) < head:
                async with connection(self._pool) as conn:
                    await wait_for(conn, PROJECTIONS, partition, head)
                look = await self._look(held, which, named)
        refuse_parked(held.thread, look.parked)
        if look.namespaces is not None:
            held.namespaces = look.namespaces
        stored = [look.saved] if look.saved is not None else []
        return await complete(partial(connection, self._pool), self._tenant, [partition], stored, look.fetched)

    async def _look(self, held: HeldThread, which: str, named: dict[str, Any]) -> Look:
        parameters = {"tenant": self._tenant, "thread": held.thread, **named}
        async with connection(self._pool) as conn:
            return await first_look(conn, which, held.namespaces is None, parameters)


def _adopt(
    held: HeldThread, saved: Saved, checkpoints: FoundCheckpoint, lists: dict[tuple[str, str], Known[Item]]
) -> None:
    """Takes over the lists that were read, so that puts can continue them and refer to their messages by id."""
    for (channel, _), value in saved.values.items():
        if isinstance(value, Listed) and len(value.items) >= value.length:
            lists[saved.ns, channel] = Known(checkpoints.sources[value.list_id], list(value.items[: value.length]))
    for value, written in (
        *((value, False) for value in saved.values.values()),
        *((write.value, True) for write in saved.writes),
    ):
        if isinstance(value, Listed | Refs):
            held.recorded.adopt((item for item in value.items if item is not None), written=written)


def conditions(
    config: RunnableConfig | None, filter: dict[str, Any] | None, before: RunnableConfig | None
) -> tuple[str, dict[str, Any]]:
    """Returns SQL conditions for LangGraph's arguments, each beginning with AND, and their parameters (pure)."""
    parts, named = list[str](), dict[str, Any]()
    if config:
        asked = config["configurable"]
        for name, column, value in (
            ("thread", "thread_id", asked["thread_id"]),
            ("ns", "checkpoint_ns", asked.get("checkpoint_ns")),
            ("id", "checkpoint_id", get_checkpoint_id(config)),
        ):
            if value is not None and (value or name != "id"):
                parts.append(f" AND {column} = %({name})s")
                named[name] = str(value)
    if filter:
        parts.append(" AND metadata @> %(filter)s")
        named["filter"] = Jsonb(filter)
    if before is not None:
        parts.append(" AND checkpoint_id < %(before)s")
        named["before"] = get_checkpoint_id(before)
    return "".join(parts), named
