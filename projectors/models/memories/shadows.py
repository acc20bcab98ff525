"""Reads shadows, that is, the memory threads of trial derivations."""

from turnlog.events.contracts import MemoriesExtracted
from turnlog.events.subjects import SHADOW, shadow_prefix
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.lookup import FIELDS, StoredMemory, stored_memory


async def users_who_spoke(conn: Connection, tenant: str) -> list[str]:
    rows = await conn.execute(
        "SELECT DISTINCT user_id FROM messages WHERE tenant = %s AND role = 'user' AND user_id IS NOT NULL "
        "ORDER BY user_id",
        (tenant,),
    )
    return [user for (user,) in await rows.fetchall()]


async def shadow_users(conn: Connection, tenant: str, shadow: str) -> list[str]:
    rows = await conn.execute(
        "SELECT DISTINCT user_id FROM memory_extractions WHERE tenant = %s AND starts_with(thread_id, %s) ORDER BY 1",
        (tenant, shadow_prefix(shadow)),
    )
    return [user for (user,) in await rows.fetchall()]


async def shadows(conn: Connection, tenant: str) -> list[tuple[str, int]]:
    """Returns the names of the tenant's shadows with the number of their users."""
    rows = await conn.execute(
        "SELECT split_part(thread_id, '/', 2), count(DISTINCT user_id) FROM memory_extractions "
        "WHERE tenant = %s AND starts_with(thread_id, %s) GROUP BY 1 ORDER BY 1",
        (tenant, SHADOW),
    )
    return [(name, users) for name, users in await rows.fetchall()]


async def all_memories(conn: Connection, tenant: str, thread: str) -> list[StoredMemory]:
    """Returns a thread's memories in any status, in the order of the log."""
    rows = await conn.execute(
        f"SELECT {FIELDS} FROM memories m WHERE tenant = %s AND thread_id = %s ORDER BY seq, id".encode(),
        (tenant, thread),
    )
    return [stored_memory(row) for row in await rows.fetchall()]


async def looked_at(conn: Connection, tenant: str, thread: str) -> dict[tuple[str, str], int]:
    """Returns the last sequence that a memory thread's extraction has read, by (conversation, stage); stages whose last
    run failed are left out."""
    rows = await conn.execute(
        "SELECT conversation, stage, through_seq FROM memory_extractions "
        "WHERE tenant = %s AND thread_id = %s AND error IS NULL",
        (tenant, thread),
    )
    return {(conversation, stage): through for conversation, stage, through in await rows.fetchall()}


async def extractors(conn: Connection, tenant: str, thread: str) -> list[MemoriesExtracted]:
    """Returns the progress of a memory thread's extractors as events."""
    rows = await conn.execute(
        "SELECT conversation, stage, through_seq, extractor FROM memory_extractions "
        "WHERE tenant = %s AND thread_id = %s ORDER BY conversation, stage",
        (tenant, thread),
    )
    return [
        MemoriesExtracted(conversation=conversation, stage=stage, from_seq=0, through_seq=through, extractor=extractor)
        for conversation, stage, through, extractor in await rows.fetchall()
    ]
