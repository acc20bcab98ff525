"""Checks the owner and participants of a conversation before it is served, and finds the conversation that a user means
by a name.

Ids are unique in a tenant, but two users may both name a conversation "main". The conversation of the first user has
the name as its id; for other users, the name means the id that `other_id` returns. A participant has agreed to take
part, so for a participant the name means the shared conversation (participants.py).
"""

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar, get_args

from turnlog.agent.access.identity import Forbidden
from turnlog.agent.conversations.threads import open_thread
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import REMOVALS, ParticipantRole
from turnlog.events.errors import NotFound, WrongExpectedVersion
from turnlog.events.subjects import check_place
from turnlog.projectors.models.conversation.thread_lookup import Ownership, is_there, ownership_of

READS = ("thread_activity",)
T = TypeVar("T")
ROLES: tuple[ParticipantRole, ...] = get_args(ParticipantRole)  # each role includes the rights of those before it
_OTHER = re.compile(r"(.*)-of-[0-9a-f]{16}", re.DOTALL)
_LONGEST = 80  # characters; `other_id` shortens a longer name to this length


def other_id(tenant: str, user: str, name: str) -> str:
    """Returns the id of a user's conversation if the conversation of another user has its name as the id."""
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}-{_digest(name)}"
    return f"{name}-of-{_digest(tenant, user, name)}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


async def own_thread(
    runtime: Runtime,
    tenant: str,
    name: str,
    user: str,
    *,
    begins: bool = False,
    or_nobody: bool = False,
    least: ParticipantRole = "owner",
) -> str:
    """Returns the id of the user's conversation with this name or id.

    begins: the conversation need not have events yet. or_nobody: threads without an owner are allowed too. least: the
    lowest role with which another user's conversation is allowed. Raises NotFound for unknown conversations and for
    those that the user deleted; Forbidden for a participant with a lower role; InvalidToken.
    """
    thread, head = await _found(runtime, tenant, name, user, or_nobody, least)
    if not head and not begins:  # its rows may come from a log that is no longer connected
        ownership = await _ownership(runtime, tenant, thread, user, partition=0)
        if not ownership.exists or (ownership.owner != user and not (or_nobody and ownership.owner is None)):
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
    least: ParticipantRole = "owner",
) -> T:
    """Appends to the user's conversation. If it has no events yet, the first event that `append` stores makes the user
    its owner.

    append: takes the thread's id and its expected version (None for any). or_nobody, least: see own_thread. Raises
    NotFound, Forbidden, InvalidToken.
    """
    while True:
        thread, head = await _found(runtime, tenant, name, user, or_nobody, least)
        if head:
            return await append(thread, None)
        try:
            return await append(thread, 0)
        except WrongExpectedVersion:
            if not await runtime.log.thread_head(tenant, thread):
                raise  # no other writer has begun it meanwhile


async def claimed(runtime: Runtime, tenant: str, name: str, user: str) -> str:
    """Returns the id like own_thread; opens the conversation if it has no events. Raises NotFound, Forbidden,
    InvalidToken."""

    async def claim(thread: str, expected: int | None) -> str:
        if expected == 0:
            await open_thread(runtime, tenant, thread, user, must_be_new=True)
        return thread

    return await append_as_owner(runtime, tenant, name, user, claim)


async def check_not_deleted(runtime: Runtime, tenant: str, thread: str) -> None:
    """Raises NotFound for a deleted conversation, even for a program that sees all users. Raises InvalidToken."""
    check_place(tenant, thread)
    if await runtime.log.thread_head_of(tenant, thread, REMOVALS):
        async with runtime.reading(*READS, of=(tenant, thread)) as conn:
            if not await is_there(conn, tenant, thread):
                raise _unknown(thread)


async def _found(
    runtime: Runtime, tenant: str, name: str, user: str, or_nobody: bool = False, least: ParticipantRole = "owner"
) -> tuple[str, int]:
    """Returns the id and the last sequence, which is 0 if the conversation has no events. Raises NotFound,
    Forbidden."""
    check_place(tenant, name, user)
    head = await runtime.log.thread_head(tenant, name)
    if head:
        role = await _role(runtime, tenant, name, user, head, or_nobody)
        if role is not None:
            if ROLES.index(role) < ROLES.index(least):
                raise Forbidden(f"this needs the role {least!r} in the conversation, and {user!r} is its {role}")
            return name, head
    elif (made := _OTHER.fullmatch(name)) is None or other_id(tenant, user, made[1]) == name:
        return name, 0  # an id that `other_id` made for another user is left to that user
    other = other_id(tenant, user, name)
    head = await runtime.log.thread_head(tenant, other)
    if head and not await _role(runtime, tenant, other, user, head, named=name):
        raise _unknown(name)
    return other, head


async def _role(
    runtime: Runtime,
    tenant: str,
    thread: str,
    user: str,
    head: int,
    or_nobody: bool = False,
    named: str | None = None,
) -> ParticipantRole | None:
    """Returns the user's role in the thread. head: the thread's last sequence. named: the user's name for it, if it is
    not the id. Raises NotFound if the user has deleted the thread, or no rows have it.

    A thread keeps its owner until it is removed. So if rows lack the latest events, this waits for them only if the
    rows do not name the user as the owner, or if a removal is among the missing events.
    """
    partition = await runtime.log.partition_of(tenant, thread, head)
    ownership = await _ownership(runtime, tenant, thread, user, partition)
    removed = 0
    if ownership.position < head or not ownership.exists:
        removed = await runtime.log.thread_head_of(tenant, thread, REMOVALS)
    if ownership.position < head and (ownership.owner != user or removed > ownership.position):
        await runtime.wait_until_thread_projected(tenant, thread, READS)
        ownership = await _ownership(runtime, tenant, thread, user, partition)
    if ownership.exists:
        return "owner" if or_nobody and ownership.owner is None else ownership.role
    last = (
        removed or head
    )  # The log still names the owner of a thread that was removed, is parked, or belonged to an erased user.
    async for recorded in runtime.log.read_thread(tenant, thread, last, last):
        if recorded.event.user not in (user, None):
            return None
    if or_nobody and not removed:
        return "owner"
    if removed:
        raise NotFound(
            f"the conversation {named or thread!r} was deleted. Its name cannot be used again, so that a late "
            "message does not bring it back; choose another name"
        )
    raise _unknown(named or thread)


async def _ownership(runtime: Runtime, tenant: str, thread: str, user: str, partition: int) -> Ownership:
    async with runtime.pool.connection() as conn:
        return await ownership_of(conn, tenant, thread, user, partition)


def _unknown(thread: str) -> NotFound:
    return NotFound(f"there is no thread {thread!r}")
