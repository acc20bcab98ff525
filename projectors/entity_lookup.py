"""Entities by name (P8)."""

from collections.abc import Iterable
from typing import Any

from psycopg.rows import dict_row

from turnlog.projectors.memory_text import name_key
from turnlog.projectors.writer import Connection

LIMIT = 20


async def entities_named(conn: Connection, tenant: str, thread: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """A user's entities with one of the names, whatever their case and type; the most mentioned first."""
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(
        "SELECT type, name, description, attributes, relations, mention_count, first_seen_at, last_seen_at "
        "FROM entities WHERE tenant = %s AND thread_id = %s AND name_key = ANY(%s) "
        f'ORDER BY mention_count DESC, last_seen_at DESC, type, name_key COLLATE "C" LIMIT {LIMIT}'.encode(),
        (tenant, thread, sorted({name_key(name) for name in names})),
    )
    return await cursor.fetchall()
