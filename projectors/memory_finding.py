"""Memories of one thread as a person points at them: all of them, by a part of an id, by words; and whose an id is."""

from collections.abc import Sequence
from uuid import UUID

from turnlog.projectors.memory_lookup import FIELDS, StoredMemory, stored_memory
from turnlog.projectors.writer import Connection

_THREAD = "m.tenant = %(tenant)s AND m.thread_id = %(thread)s"


async def every_memory(
    conn: Connection, tenant: str, thread: str, kinds: Sequence[str] = (), limit: int = 100
) -> list[StoredMemory]:
    """Whatever their status, said last first."""
    return await _found(
        conn,
        "(%(kinds)s::text[] = '{}' OR m.kind = ANY(%(kinds)s)) "
        "ORDER BY m.confirmed_at DESC, m.seq DESC, m.id LIMIT %(limit)s",
        {"tenant": tenant, "thread": thread, "kinds": list(kinds), "limit": limit},
    )


async def memories_by_prefix(
    conn: Connection, tenant: str, thread: str, prefix: str, limit: int = 10
) -> list[StoredMemory]:
    """Those whose id begins so, in any status."""
    return await _found(
        conn,
        "starts_with(m.id::text, %(prefix)s) ORDER BY m.seq, m.id LIMIT %(limit)s",
        {"tenant": tenant, "thread": thread, "prefix": prefix, "limit": limit},
    )


async def memories_with_words(
    conn: Connection, tenant: str, thread: str, words: str, statuses: Sequence[str], limit: int = 10
) -> list[StoredMemory]:
    """Those whose content has the words, whatever their case, said last first."""
    return await _found(
        conn,
        "m.status = ANY(%(statuses)s) AND strpos(lower(m.content), lower(%(words)s)) > 0 "
        "ORDER BY m.confirmed_at DESC, m.seq DESC, m.id LIMIT %(limit)s",
        {"tenant": tenant, "thread": thread, "words": words, "statuses": list(statuses), "limit": limit},
    )


async def users_with_memory(conn: Connection, tenant: str, memory_id: UUID) -> list[str]:
    """Whose it is; shadows do not count."""
    rows = await conn.execute(
        "SELECT DISTINCT user_id FROM memories WHERE tenant = %s AND id = %s AND thread_id LIKE 'memories/%%' "
        "ORDER BY user_id LIMIT 2",
        (tenant, memory_id),
    )
    return [user for (user,) in await rows.fetchall()]


async def _found(conn: Connection, where: str, params: dict[str, object]) -> list[StoredMemory]:
    rows = await conn.execute(f"SELECT {FIELDS} FROM memories m WHERE {_THREAD} AND {where}".encode(), params)
    return [stored_memory(row) for row in await rows.fetchall()]
