"""Reads entities; this module does not load their projector."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from psycopg.rows import dict_row

from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.text import name_key

LIMIT = 20
# The position of an entity in the list of the most mentioned: mention_count, last_seen_at, type, name.
Mentioned = tuple[int, datetime, str, str]


async def entities_named(conn: Connection, tenant: str, thread: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """Returns a user's entities of any type with one of the names, ignoring case; the most mentioned first."""
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(
        "SELECT type, name, description, attributes, relations, mention_count, first_seen_at, last_seen_at "
        "FROM entities WHERE tenant = %s AND thread_id = %s AND name_key = ANY(%s) "
        f'ORDER BY mention_count DESC, last_seen_at DESC, type, name_key COLLATE "C" LIMIT {LIMIT}'.encode(),
        (tenant, thread, sorted({name_key(name) for name in names})),
    )
    return await cursor.fetchall()


async def entity_of(conn: Connection, tenant: str, thread: str, type_: str, name: str) -> dict[str, Any] | None:
    """Returns a user's entity of this type and name, ignoring case, with its sources; None if there is none."""
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(
        "SELECT type, name, description, attributes, relations, sources, mention_count, first_seen_at, last_seen_at "
        "FROM entities WHERE tenant = %s AND thread_id = %s AND type = %s AND name_key = %s",
        (tenant, thread, type_, name_key(name)),
    )
    return await cursor.fetchone()


async def entities_of(
    conn: Connection,
    tenant: str,
    thread: str,
    type_: str | None = None,
    limit: int = 100,
    after: Mentioned | None = None,
) -> list[dict[str, Any]]:
    """Returns entities of a memory thread with their sources, most mentioned first.

    after: the position of the last entity of the previous page.
    """
    count, seen_at, after_type, name = after or (None, None, None, "")
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(
        "SELECT type, name, description, attributes, relations, sources, mention_count, first_seen_at, last_seen_at "
        "FROM entities WHERE tenant = %(tenant)s AND thread_id = %(thread)s "
        "AND (%(type)s::text IS NULL OR type = %(type)s) "
        "AND (%(count)s::bigint IS NULL OR (mention_count, last_seen_at) < (%(count)s, %(seen_at)s::timestamptz) "
        "OR (mention_count, last_seen_at) = (%(count)s, %(seen_at)s) "
        'AND (type, name_key COLLATE "C") > (%(after_type)s, %(name_key)s)) '
        'ORDER BY mention_count DESC, last_seen_at DESC, type, name_key COLLATE "C" LIMIT %(limit)s',
        {
            **{"tenant": tenant, "thread": thread, "type": type_, "limit": limit},
            **{"count": count, "seen_at": seen_at, "after_type": after_type, "name_key": name_key(name)},
        },
    )
    return await cursor.fetchall()
