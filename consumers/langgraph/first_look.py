"""One checkpoint in one statement: whether the tables have caught up, whether the thread is parked, and its row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnlog.consumers.langgraph.catching_up import PROJECTIONS
from turnlog.consumers.langgraph.reading import CHECKPOINTS, Raw, raw_of
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


async def first_look(conn: Connection, which: str, asks: bool, named: Mapping[str, Any]) -> Look:
    """which: NEWEST or ONE. named: tenant, thread, ns, and id for ONE; asks: for the namespaces."""
    asked = {**named, "asks": asks, "projections": list(PROJECTIONS), "token": thread_token(named["thread"])}
    row = await (await conn.execute(_LOOK.format(which=which).encode(), asked, binary=True)).fetchone()
    assert row is not None
    reached, parked, namespaces, *found = row
    return Look(
        dict(reached or ()),
        parked,
        frozenset(namespaces or ()) if asks else None,
        raw_of(*found) if found[0] is not None else None,
    )
