"""A new thread that begins with the turns of another one, without a copy of them (C10)."""

import uuid

from turnlog.agent.archive.restoring import restored_if_archived
from turnlog.agent.runtime import Runtime
from turnlog.agent.threads.forking import Forked, fork
from turnlog.events.subjects import check_conversation, check_id, check_tenant


async def fork_thread(
    runtime: Runtime, tenant: str, thread: str, at_seq: int, new_thread: str | None = None, label: str | None = None
) -> Forked:
    """at_seq: the last sequence of the log that the new thread begins with. new_thread: None for an id of its own.

    Raises NotFound for an unknown thread or moment, CutInACall, ThreadExists, InvalidToken.
    """
    check_tenant(tenant)
    check_id("thread", thread)
    target = f"{thread}-fork-{uuid.uuid4().hex[:8]}" if new_thread is None else check_conversation(new_thread)
    await runtime.settle(names=("messages", "archives"))
    async with runtime.pool.connection() as conn:
        await restored_if_archived(runtime, conn, tenant, thread)
        made = await fork(conn, runtime.log, tenant, thread, at_seq, target, label or None)
    await runtime.settle()
    return made
