"""Reading restores: a conversation of the archive comes back when somebody reads or writes in it (L4)."""

from turnlog.consumers.runtime import Runtime
from turnlog.events.subjects import parse_stored
from turnlog.projectors.archive_lookup import archived_lineage, archived_threads
from turnlog.projectors.lag import wait_for
from turnlog.projectors.writer import Connection

READS = ("archives", "messages", "vectors")


async def restored_if_archived(runtime: Runtime, conn: Connection, tenant: str, thread: str) -> bool:
    """Brings back the thread, and the archived ones it is a fork of; one lookup when there is none.

    Returns when the read models have them. Raises LogUnavailable, GapInLog, KeyUnavailable, NotProjectedInTime.
    """
    archived = await archived_lineage(conn, tenant, thread)
    for one in archived:
        await _restored(runtime, conn, tenant, one)
    return bool(archived)


async def restored_of_user(runtime: Runtime, conn: Connection, tenant: str, user: str | None) -> int:
    """All of a user's conversations, or a tenant's; returns how many."""
    archived = await archived_threads(conn, tenant, user)
    for one in archived:
        await _restored(runtime, conn, tenant, one)
    return len(archived)


async def _restored(runtime: Runtime, conn: Connection, tenant: str, thread: str) -> None:
    from turnlog.agent.archive.restoring import restore  # only what is archived needs it

    await restore(runtime.log, runtime.settings.archive, tenant, thread)
    head = await runtime.log.thread_head(tenant, thread)
    if head:
        partition = parse_stored((await runtime.log.stored(head)).subject).partition
        await wait_for(conn, READS, partition, head)
