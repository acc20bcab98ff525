"""One checkpoint in one round trip: whether the tables have caught up, whether the thread is parked, its row, and the
lists and turns that it names."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from turnlog.consumers.langgraph.catching_up import PROJECTIONS
from turnlog.consumers.langgraph.reading import (
    CHECKPOINTS,
    ONE_PLAN,
    SPARE_TURNS,
    Fetched,
    Raw,
    fetched_of,
    lists_and_turns,
    raw_of,
)
from turnlog.events.subjects import thread_token
from turnlog.projectors.writer import Connection

# From one namespace to the next by the index, however many checkpoints each has.
_NAMESPACES = """
    WITH RECURSIVE n(ns) AS (
        (SELECT checkpoint_ns FROM checkpoints WHERE tenant = %(tenant)s AND thread_id = %(thread)s
         ORDER BY checkpoint_ns LIMIT 1)
        UNION ALL
        SELECT (SELECT checkpoint_ns FROM checkpoints WHERE tenant = %(tenant)s AND thread_id = %(thread)s
                AND checkpoint_ns > n.ns ORDER BY checkpoint_ns LIMIT 1) FROM n WHERE n.ns IS NOT NULL
    ) SELECT array_agg(ns) FROM n WHERE ns IS NOT NULL
"""
_LOOK = f"""
SELECT s.*, found.* FROM (SELECT
    (SELECT array_agg(ARRAY[p.partition, p.reached]) FROM (
        SELECT partition, min(position) AS reached FROM projection_positions
        WHERE build = 'live' AND projection = ANY(%(projections)s)
        GROUP BY partition HAVING count(*) = {len(PROJECTIONS)}) p),
    (SELECT seq || ': ' || error FROM dead_letters WHERE tenant = %(tenant)s AND thread_token = %(token)s
     AND build = 'live' AND status = 'parked' AND projection = ANY(%(projections)s) ORDER BY seq LIMIT 1),
    CASE WHEN %(asks)s THEN ({_NAMESPACES}) END
) s LEFT JOIN LATERAL ({CHECKPOINTS} AND c.thread_id = %(thread)s AND c.checkpoint_ns = %(ns)s {{which}}) found ON true
"""
# What LOOK finds names these; the server knows that before it is told.
_NAMED = """
    SELECT convert_from(b.blob, 'UTF8')::jsonb AS list FROM (
        SELECT * FROM checkpoints c
        WHERE c.tenant = %(tenant)s AND c.thread_id = %(thread)s AND c.checkpoint_ns = %(ns)s {which}
    ) c CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') v CROSS JOIN LATERAL (
        SELECT * FROM checkpoint_blobs b WHERE b.tenant = c.tenant AND b.thread_id = c.thread_id
        AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = v.key AND b.version = v.value LIMIT 1
    ) b WHERE b.type = 'turnlog.list'
"""
_LISTS = f"SELECT n.list ->> 'list' FROM ({_NAMED}) n"
_COUNT = f"(SELECT coalesce(sum((n.list ->> 'count')::int) + {SPARE_TURNS}, 0) FROM ({_NAMED}) n)"
NEWEST = "ORDER BY c.checkpoint_id DESC LIMIT 1"
ONE = "AND c.checkpoint_id = %(id)s"


@dataclass(frozen=True, slots=True)
class Look:
    """reached: partition → the sequence up to which the tables have it. parked: what is wrong with the thread.

    namespaces: those of the thread that have checkpoints; None where they were not asked for.
    """

    reached: Mapping[int, int]
    parked: str | None
    namespaces: frozenset[str] | None
    raw: Raw | None
    fetched: Fetched


async def first_look(conn: Connection, which: str, asks: bool, named: Mapping[str, Any]) -> Look:
    """which: NEWEST or ONE. named: tenant, thread, ns, and id for ONE; asks: for the namespaces."""
    asked = {**named, "asks": asks, "projections": list(PROJECTIONS), "token": thread_token(named["thread"])}
    look_sql, list_sql, turn_sql = _statements(which)
    async with conn.pipeline():
        await conn.execute(ONE_PLAN)
        looked = await conn.execute(look_sql, asked, binary=True, prepare=True)
        lists = await conn.execute(list_sql, asked, binary=True, prepare=True)
        turns = await conn.execute(turn_sql, asked, binary=True, prepare=True)
    row = await looked.fetchone()
    assert row is not None
    reached, parked, namespaces, *found = row
    return Look(
        dict(reached or ()),
        parked,
        frozenset(namespaces or ()) if asks else None,
        raw_of(*found) if found[0] is not None else None,
        fetched_of(await lists.fetchall(), await turns.fetchall()),
    )


@cache
def _statements(which: str) -> tuple[bytes, bytes, bytes]:
    lists, count = _LISTS.format(which=which), _COUNT.format(which=which)
    return _LOOK.format(which=which).encode(), *lists_and_turns(lists, count)
