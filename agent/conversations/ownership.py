"""The owner of a conversation, and the one that a user means by its name: checked before a thread is served.

Names are unique in a tenant, and two users may both say "main". The first one's conversation has the name as its id;
where that id is another's, the name means `other_id` of it, for whoever it is not.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnlog.agent.conversations.threads import open_thread
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import REMOVALS
from turnlog.events.errors import NotFound, WrongExpectedVersion
from turnlog.events.subjects import check_place
from turnlog.projectors.models.conversation.thread_lookup import is_there, owner_of

READS = ("thread_activity",)
T = TypeVar("T")
_OTHER = re.compile(r"(.*)-of-[0-9a-f]{16}", re.DOTALL)
_LONGEST = 80  # characters of a name that its other id has as they are


def other_id(tenant: str, user: str, name: str) -> str:
    """Returns the id of a user's conversation where the one with this name is another user's."""
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}-{_digest(name)}"
    return f"{name}-of-{_digest(tenant, user, name)}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


async def own_thread(
    runtime: Runtime, tenant: str, name: str, user: str, *, begins: bool = False, or_nobody: bool = False
) -> str:
    """Returns the id of the user's conversation of this name or id.

    begins: it need not have events yet. or_nobody: threads without an owner are open, too. Raises NotFound for unknown
    conversations, and for those that the user deleted; InvalidToken.
    """
    thread, head = await _found(runtime, tenant, name, user, or_nobody)
    if not head and not begins:  # rows of a log that is no longer connected can be read
        known, owner, _ = await _owner(runtime, tenant, thread, partition=0)
        if not known or (owner != user and not (or_nobody and owner is None)):
            raise _unknown(name)
    return thread


async def append_as_owner(
    runtime: Runtime,
    tenant: str,
    name: str,
    user: str,
    append: Callable[[str, int | None], Awaitable[T]],
    *,
    or_nobody: bool = False,
) -> T:
    """Appends to the user's conversation; one without events becomes the user's with the first event of `append`.

    append: takes the thread's id and the version of it to expect, None for any. or_nobody: see own_thread. Raises
    NotFound, InvalidToken.
    """
    while True:
        thread, head = await _found(runtime, tenant, name, user, or_nobody)
        if head:
            return await append(thread, None)
        try:
            return await append(thread, 0)
        except WrongExpectedVersion:
            if not await runtime.log.thread_head(tenant, thread):
                raise  # nobody has begun it meanwhile


async def claimed(runtime: Runtime, tenant: str, name: str, user: str) -> str:
    """Returns what own_thread does, and opens a conversation without events. Raises NotFound, InvalidToken."""

    async def claim(thread: str, expected: int | None) -> str:
        if expected == 0:
            await open_thread(runtime, tenant, thread, user, must_be_new=True)
        return thread

    return await append_as_owner(runtime, tenant, name, user, claim)


async def check_not_deleted(runtime: Runtime, tenant: str, thread: str) -> None:
    """Refuses a deleted conversation also to a program that sees all users. Raises NotFound, InvalidToken."""
    check_place(tenant, thread)
    if await runtime.log.thread_head_of(tenant, thread, REMOVALS):
        async with runtime.reading(*READS, of=(tenant, thread)) as conn:
            if not await is_there(conn, tenant, thread):
                raise _unknown(thread)


async def _found(runtime: Runtime, tenant: str, name: str, user: str, or_nobody: bool = False) -> tuple[str, int]:
    """Returns the id, and its last sequence: 0 where the conversation has not begun. Raises NotFound."""
    check_place(tenant, name, user)
    head = await runtime.log.thread_head(tenant, name)
    if head:
        if await _is_of(runtime, tenant, name, user, head, or_nobody):
            return name, head
    elif (made := _OTHER.fullmatch(name)) is None or other_id(tenant, user, made[1]) == name:
        return name, 0  # nobody can take the id that a name of another user means
    other = other_id(tenant, user, name)
    head = await runtime.log.thread_head(tenant, other)
    if head and not await _is_of(runtime, tenant, other, user, head, named=name):
        raise _unknown(name)
    return other, head


async def _is_of(
    runtime: Runtime,
    tenant: str,
    thread: str,
    user: str,
    head: int,
    or_nobody: bool = False,
    named: str | None = None,
) -> bool:
    """Returns whether the thread is the user's. head: the thread's last sequence. named: what the user calls it, if not
    by its id. Raises NotFound where the user has deleted it, or nobody's rows have it.

    A thread keeps its user until it is removed. So rows that lack the latest turns are waited for only where they do
    not name the user, or where a removal is among what they lack.
    """
    partition = await runtime.log.partition_of(tenant, thread, head)
    known, owner, position = await _owner(runtime, tenant, thread, partition)
    removed = 0
    if position < head or not known:
        removed = await runtime.log.thread_head_of(tenant, thread, REMOVALS)
    if position < head and (owner != user or removed > position):
        await runtime.wait_until_thread_projected(tenant, thread, READS)
        known, owner, _ = await _owner(runtime, tenant, thread, partition)
    if known:
        return owner == user or (or_nobody and owner is None)
    last = (
        removed or head
    )  # The log knows the owner of a thread that was removed, is parked, or belonged to an erased user.
    async for one in runtime.log.read_thread(tenant, thread, last, last):
        if one.event.user not in (user, None):
            return False
    if or_nobody and not removed:
        return True
    if removed:
        raise NotFound(
            f"the conversation {named or thread!r} was deleted, and its name stays with it, so that a late message "
            "cannot bring it back; begin one with another name"
        )
    raise _unknown(named or thread)


async def _owner(runtime: Runtime, tenant: str, thread: str, partition: int) -> tuple[bool, str | None, int]:
    async with runtime.pool.connection() as conn:
        return await owner_of(conn, tenant, thread, partition)


def _unknown(thread: str) -> NotFound:
    return NotFound(f"there is no thread {thread!r}")
