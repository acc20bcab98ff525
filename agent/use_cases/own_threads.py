"""Whose a conversation is: what a face asks before it serves a thread to one user of a tenant."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnlog.agent.runtime import Runtime
from turnlog.agent.use_cases.threads import open_thread
from turnlog.events.contracts import REMOVALS
from turnlog.events.errors import NotFound, WrongExpectedVersion
from turnlog.events.subjects import check_place
from turnlog.projectors.models.thread_lookup import owner_of

READS = ("thread_activity",)
T = TypeVar("T")


async def check_owner(runtime: Runtime, tenant: str, thread: str, user: str) -> None:
    """Raises NotFound unless the conversation is the user's: for those of others and for unknown ones alike.

    Raises InvalidToken.
    """
    check_place(tenant, thread, user)
    await _check(runtime, tenant, thread, user, await runtime.log.thread_head(tenant, thread))


async def check_not_of_others(runtime: Runtime, tenant: str, thread: str, user: str) -> None:
    """As check_owner, but a thread without events passes. Raises NotFound, InvalidToken."""
    check_place(tenant, thread, user)
    if head := await runtime.log.thread_head(tenant, thread):
        await _check(runtime, tenant, thread, user, head)


async def append_as_owner(
    runtime: Runtime,
    tenant: str,
    thread: str,
    user: str,
    append: Callable[[int | None], Awaitable[T]],
    *,
    or_nobody: bool = False,
) -> T:
    """Appends to the user's conversation; one without events becomes the user's with the first event of `append`.

    append: takes the version of the thread to expect, None for any. Of two users who begin a thread at once, one gets
    it. or_nobody: threads without an owner are open, too. Raises NotFound for a thread of another user, InvalidToken.
    """
    check_place(tenant, thread, user)
    head = await runtime.log.thread_head(tenant, thread)
    if not head:
        try:
            return await append(0)
        except WrongExpectedVersion:  # another request began it at the same time
            head = await runtime.log.thread_head(tenant, thread)
    await _check(runtime, tenant, thread, user, head, or_nobody)
    return await append(None)


async def own_or_claim(runtime: Runtime, tenant: str, thread: str, user: str) -> None:
    """As check_owner, but a thread without events becomes the user's. Of two who claim one at once, one gets it."""
    check_place(tenant, thread, user)
    head = await runtime.log.thread_head(tenant, thread)
    if not head:
        try:
            await open_thread(runtime, tenant, thread, user, must_be_new=True)
            return
        except WrongExpectedVersion:  # another request opened it at the same time
            head = await runtime.log.thread_head(tenant, thread)
    await _check(runtime, tenant, thread, user, head)


async def _check(runtime: Runtime, tenant: str, thread: str, user: str, head: int, or_nobody: bool = False) -> None:
    """head: the thread's last sequence. or_nobody: a thread without an owner passes. Raises NotFound.

    A thread keeps its user until it is removed. So rows that lack the latest turns are waited for only where they do
    not name the user, or where a removal is among what they lack.
    """
    partition = await runtime.log.partition_of(tenant, thread, head)
    owner, position = await _owner(runtime, tenant, thread, partition)
    if position < head and (owner != user or await _is_removed_after(runtime, tenant, thread, position)):
        await runtime.settle_thread(tenant, thread, READS)
        owner, _ = await _owner(runtime, tenant, thread, partition)
    if owner != user and not (or_nobody and owner is None):
        raise NotFound(f"there is no thread {thread!r}")


async def _owner(runtime: Runtime, tenant: str, thread: str, partition: int) -> tuple[str | None, int]:
    async with runtime.pool.connection() as conn:
        return await owner_of(conn, tenant, thread, partition)


async def _is_removed_after(runtime: Runtime, tenant: str, thread: str, seq: int) -> bool:
    return await runtime.log.thread_head_of(tenant, thread, REMOVALS) > seq
