"""Whose a conversation is: what a face asks before it serves a thread to one user of a tenant."""

from turnlog.agent.runtime import Runtime
from turnlog.agent.use_cases.threads import READS, open_thread
from turnlog.events.errors import NotFound, WrongExpectedVersion
from turnlog.events.subjects import check_place
from turnlog.projectors.models.thread_lookup import one_thread


async def check_owner(runtime: Runtime, tenant: str, thread: str, user: str) -> None:
    """Raises NotFound unless the conversation is the user's: for those of others and for unknown ones alike.

    Raises InvalidToken.
    """
    check_place(tenant, thread, user)
    await runtime.settle_thread(tenant, thread, READS)
    async with runtime.pool.connection() as conn:
        row = await one_thread(conn, tenant, thread)
    if row is None or row["user_id"] != user:
        raise NotFound(f"there is no thread {thread!r}")


async def check_not_of_others(runtime: Runtime, tenant: str, thread: str, user: str) -> None:
    """As check_owner, but a thread without events passes. Raises NotFound, InvalidToken."""
    check_place(tenant, thread, user)
    if await runtime.log.thread_head(tenant, thread):
        await check_owner(runtime, tenant, thread, user)


async def own_or_claim(runtime: Runtime, tenant: str, thread: str, user: str) -> None:
    """As check_owner, but a thread without events becomes the user's. Of two who claim one at once, one gets it."""
    check_place(tenant, thread, user)
    if not await runtime.log.thread_head(tenant, thread):
        try:
            await open_thread(runtime, tenant, thread, user, must_be_new=True)
            return
        except WrongExpectedVersion:
            pass  # another request opened it at the same time
    await check_owner(runtime, tenant, thread, user)
