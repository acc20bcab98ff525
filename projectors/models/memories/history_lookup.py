"""Reads the history of a memory: the memories that it replaced or absorbed, and those that replaced or absorbed it."""

from collections.abc import Sequence
from uuid import UUID

from turnlog.events.contracts import EndReason
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.lookup import FIELDS, IN_THREAD, StoredMemory, stored_memory

CHAIN_UP_TO = 1_000
MERGE_REASONS: tuple[EndReason, ...] = ("duplicate", "merged", "edited")


async def history(conn: Connection, tenant: str, thread: str, memory_id: UUID) -> list[StoredMemory]:
    """Returns a memory with the memories that it replaced or that replaced it, directly or through others, at most
    CHAIN_UP_TO, by valid_from; [] if the id is unknown."""
    return await _chain(conn, tenant, thread, memory_id, None, CHAIN_UP_TO)


async def family(conn: Connection, tenant: str, thread: str, memory_id: UUID) -> list[StoredMemory]:
    """Returns a memory with all memories that were merged into it or that it was merged into: duplicates, members,
    edited versions."""
    return await _chain(conn, tenant, thread, memory_id, MERGE_REASONS, None)


async def _chain(
    conn: Connection, tenant: str, thread: str, memory_id: UUID, reasons: Sequence[EndReason] | None, most: int | None
) -> list[StoredMemory]:
    """Returns the memories that are linked to a memory, directly or through others. reasons: follows only links with
    these reasons; None follows all. OFFSET 0 keeps the planner from moving the look-ups out of the loop, so that each
    uses its index (see _INDEXED in lookup.py)."""
    is_link = "(%(reasons)s::text[] IS NULL OR {}.closed_reason = ANY(%(reasons)s))"
    rows = await conn.execute(
        f"""
        WITH RECURSIVE chain AS (
          SELECT m.id, m.replaced_by, m.closed_reason FROM memories m WHERE {IN_THREAD} AND m.id = %(id)s
          UNION SELECT m.id, m.replaced_by, m.closed_reason FROM chain c CROSS JOIN LATERAL (
            (SELECT * FROM memories m WHERE m.replaced_by = c.id AND m.tenant IS NOT DISTINCT FROM %(tenant)s
              AND m.thread_id IS NOT DISTINCT FROM %(thread)s AND {is_link.format("m")} OFFSET 0)
            UNION ALL
            (SELECT * FROM memories m WHERE {IN_THREAD} AND m.id = c.replaced_by AND {is_link.format("c")} OFFSET 0)
          ) m)
        SELECT {FIELDS} FROM (SELECT id FROM chain LIMIT %(most)s::int) c
        CROSS JOIN LATERAL (SELECT * FROM memories m WHERE {IN_THREAD} AND m.id = c.id OFFSET 0) m
        ORDER BY m.valid_from, m.seq, m.id""".encode(),
        {
            **{"tenant": tenant, "thread": thread, "id": memory_id, "most": most},
            "reasons": None if reasons is None else list(reasons),
        },
    )
    return [stored_memory(row) for row in await rows.fetchall()]
