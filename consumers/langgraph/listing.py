"""Checkpoints that fit a config and a filter, newest first, a page at a time."""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import get_checkpoint_id
from psycopg.types.json import Jsonb

from turnlog.consumers.langgraph.catching_up import all_applied, thread_applied
from turnlog.consumers.langgraph.reading import complete, raw_checkpoints
from turnlog.consumers.langgraph.store_database import connection
from turnlog.consumers.langgraph.thread_state import log_state
from turnlog.consumers.langgraph.tuples import Saved
from turnlog.consumers.runtime import Pool
from turnlog.events.log import Log

PAGE = 50
Key = tuple[str, str, str]


class Listing:
    """Raises LogUnavailable, DatabaseUnavailable, NotProjectedInTime, ThreadParked."""

    def __init__(self, log: Log, pool: Pool, tenant: str) -> None:
        self._log, self._pool, self._tenant = log, pool, tenant

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
        """Every checkpoint of a thread."""
        await self._caught_up(thread)
        named = {"tenant": self._tenant, "thread": thread, "limit": None}
        keys = await self._keys(" AND thread_id = %(thread)s", named)
        async for saved in self._in_pages(keys[::-1]):
            yield saved

    async def _in_pages(self, keys: list[Key]) -> AsyncIterator[Saved]:
        for start in range(0, len(keys), PAGE):
            page = keys[start : start + PAGE]
            found = await self._page(page)
            for key in page:
                if key in found:
                    yield found[key]

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
        found: dict[Key, Saved] = {}
        connect = partial(connection, self._pool)
        for thread in dict.fromkeys(key[0] for key in page):
            own = [key for key in page if key[0] == thread]
            where = (
                "AND c.thread_id = %(thread)s AND (c.checkpoint_ns, c.checkpoint_id) IN "
                "(SELECT * FROM unnest(%(namespaces)s::text[], %(ids)s::text[]))"
            )
            named = {"thread": thread, "namespaces": [ns for _, ns, _ in own], "ids": [one for *_, one in own]}
            async with connect() as conn:
                raws = await raw_checkpoints(conn, self._tenant, where, named)
            complete_ones = await complete(connect, self._tenant, range(self._log.partitions), raws)
            found |= {(one.thread, one.ns, one.checkpoint_id): one for one in complete_ones.saved}
        return found


def conditions(
    config: RunnableConfig | None, filter: dict[str, Any] | None, before: RunnableConfig | None
) -> tuple[str, dict[str, Any]]:
    """SQL that begins with AND, and its parameters (pure)."""
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
