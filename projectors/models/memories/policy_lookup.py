"""Reads what the memory policy needs: the values of each memory, and the number of memories in each tier."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from turnlog.events.subjects import MEMORIES
from turnlog.projectors.engine.writer import Connection


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """The values of a memory that the policy needs. thread: a memory thread, also that of a trial derivation.
    importance: the value at importance_at. confirmed_at: when the memory was last said, but not before turnlog recorded
    it, because imported conversations may be old.
    """

    tenant: str
    thread: str
    user: str
    id: UUID
    status: str
    importance: float
    importance_at: datetime
    confidence: float
    access_count: int
    last_accessed_at: datetime | None
    confirmed_at: datetime
    expires_at: datetime | None


_POLICY_ROWS = """
SELECT tenant, thread_id, user_id, id, status, importance, importance_at, confidence, access_count,
  last_accessed_at, greatest(confirmed_at, importance_at), expires_at
FROM memories WHERE status IN ('valid', 'archived')"""


async def policy_rows(
    conn: Connection, tenant: str | None = None, user: str | None = None
) -> AsyncGenerator[PolicyRow, None]:
    """Yields every valid or archived memory, ordered by tenant and thread, from a server-side cursor. tenant, user:
    yield only memories of this tenant or user."""
    chosen = "(%(tenant)s::text IS NULL OR tenant = %(tenant)s) AND (%(user)s::text IS NULL OR user_id = %(user)s)"
    query = f"{_POLICY_ROWS} AND {chosen} ORDER BY tenant, thread_id, id"
    async with conn.transaction(), conn.cursor("memory_policy_rows") as cursor:
        cursor.itersize = 2_000
        await cursor.execute(query.encode(), {"tenant": tenant, "user": user})
        async for row in cursor:
            yield PolicyRow(*row)


async def tier_counts(conn: Connection, policy: Mapping[str, Any], totals: Sequence[float]) -> list[int]:
    """Returns how many valid or archived memories of all tenants are in each tier. A memory is in the tier of the first
    of `totals` that its score reaches; the last number counts memories that reach none. policy: the fields of a Policy.
    The score is computed as in policy.py."""
    days = "greatest(0, extract(epoch FROM now() - {})::float / 86400)"
    first = "least(1, greatest(0, importance + least(access_count * %(access_boost)s, %(max_access_boost)s)))"
    decayed = f"CASE WHEN %(enabled)s THEN greatest(least(%(floor)s, i), i - %(decay_rate)s * {days.format('since')}) "
    rows = await conn.execute(
        f"SELECT (SELECT count(*) FROM unnest(%(totals)s::float[]) t WHERE t > total + 1e-9)::int, count(*)::int FROM ("
        f"SELECT least(1, greatest(0, %(importance_weight)s * ({decayed} ELSE i END) + %(freshness_weight)s * "
        f"exp(-%(freshness_rate)s * {days.format('said')}) + %(confidence_weight)s * confidence + "
        "least(%(max_access_bonus)s, %(access_bonus)s * access_count))) AS total FROM ("
        f"SELECT {first} AS i, importance_at AS since, greatest(confirmed_at, importance_at) AS said, confidence, "
        "access_count FROM memories WHERE status IN ('valid', 'archived') AND user_id <> '' "
        "AND starts_with(thread_id, %(memories)s)) m) scored GROUP BY 1".encode(),
        {**policy, "totals": list(totals), "memories": MEMORIES},
    )
    counts: dict[int, int] = dict(await rows.fetchall())
    return [counts.get(tier, 0) for tier in range(len(totals) + 1)]


async def policy_rows_by_id(conn: Connection, tenant: str, thread: str, ids: Sequence[UUID]) -> list[PolicyRow]:
    rows = await conn.execute(
        f"{_POLICY_ROWS} AND tenant = %s AND thread_id = %s AND id = ANY(%s) ORDER BY id".encode(),
        (tenant, thread, list(ids)),
    )
    return [PolicyRow(*row) for row in await rows.fetchall()]
