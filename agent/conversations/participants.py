"""Manages the participants of a conversation: its owner shares it with other users, who read it and speak in it under
their own names.

A turn belongs to the user whose words it contains: it is encrypted with that user's key, memories from it are that
user's, and an erasure of that user makes it unreadable, regardless of who owns the conversation. So turns under a name
are attributed to a user only after that user has agreed, or if a program that acts for the user says so. Until then, an
invitation has no effect: nobody can get access to what another user calls "main", or attribute words to another user.
"""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from uuid_utils.compat import uuid7

from turnlog.agent.access.identity import Forbidden
from turnlog.agent.conversations.ownership import other_id
from turnlog.agent.conversations.threads import SOURCE, get_thread
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, ParticipantRole, ParticipantSet
from turnlog.events.contracts.origin import is_name_of
from turnlog.events.errors import InvalidEvent, NotFound
from turnlog.events.subjects import check_place
from turnlog.events.texts import storable
from turnlog.projectors.models.conversation.thread_lookup import Participant as Participant
from turnlog.projectors.models.conversation.thread_lookup import invitations_of, one_thread, participants_in

READS = ("thread_activity",)


class NameTaken(InvalidEvent):
    """The name belongs to another person in the conversation, or the user has a conversation of the same name."""

    code = "name-taken"


@dataclass(frozen=True, slots=True)
class Invitation:
    """A conversation that its owner wants to share with a user who has not agreed yet."""

    thread: str
    owner: str | None
    name: str
    role: ParticipantRole


async def list_participants(runtime: Runtime, tenant: str, thread: str) -> list[Participant]:
    """Returns the participants, including invited users, sorted by user; the owner only if the owner has set a name.
    Raises InvalidToken."""
    check_place(tenant, thread)
    async with runtime.reading(*READS, of=(tenant, thread)) as conn:
        return await participants_in(conn, tenant, thread)


async def list_invitations(runtime: Runtime, tenant: str, user: str) -> list[Invitation]:
    """Returns the conversations that others want to share with the user, sorted by id. Raises InvalidToken."""
    check_place(tenant, user=user)
    async with runtime.reading(*READS) as conn:
        return [Invitation(*row) for row in await invitations_of(conn, tenant, user)]


async def share_thread(
    runtime: Runtime,
    tenant: str,
    thread: str,
    user: str,
    *,
    name: str | None = None,
    role: ParticipantRole = "member",
    agreed: bool = True,
    event_id: UUID | None = None,
) -> Participant:
    """Shares a conversation with a user, or changes the name and role of a participant.

    name: the name of the user's turns; by default the present name, or else the user's id. role: a member reads and
    appends, a reader only reads; the owner's own entry only sets the owner's name. agreed: the caller may act for the
    user; otherwise this is an invitation, which has no effect until the user joins. A user who has agreed to the name
    need not agree to another role. Raises NotFound, NameTaken, InvalidToken, and InvalidEvent for a conversation
    without an owner or for the role "owner" of another user.
    """
    check_place(tenant, thread, user)
    owner = (await get_thread(runtime, tenant, thread)).user
    if owner is None:
        raise InvalidEvent(f"the conversation {thread!r} has no owner, so nobody can share it")
    if user == owner:
        role, agreed = "owner", True
    elif role == "owner":
        raise InvalidEvent(f"the owner is {owner!r}; a participant is a member or a reader")
    elif await runtime.log.thread_head(tenant, other_id(tenant, user, thread)):
        raise NameTaken(
            f"{user!r} already has a conversation named {thread!r}; share one with another id, such as a fork"
        )
    entries = {participant.user: participant for participant in await list_participants(runtime, tenant, thread)}
    before = entries.pop(user, None)
    name = storable(name or (before.name if before else user)).strip()
    agreed = agreed or (before is not None and before.agreed and before.name == name)
    theirs = {owner: owner, **{participant.user: participant.name for participant in entries.values()}}
    theirs.pop(user, None)
    if not name or is_name_of(name, None) or any(is_name_of(name, taken) for taken in theirs.values()):
        raise NameTaken(f"the name {name!r} is too similar to another speaker's in this conversation")
    await _append(runtime, tenant, thread, user, ParticipantSet(name=name, role=role, agreed=agreed), event_id)
    return Participant(user, name, role, agreed)


async def join_thread(
    runtime: Runtime, tenant: str, thread: str, user: str, name: str | None = None, *, event_id: UUID | None = None
) -> Participant:
    """Accepts an invitation for its user, or changes the name of a participant.

    thread: the conversation's id. Raises NotFound if the user is not invited, NameTaken, InvalidToken.
    """
    invited = await _entry(runtime, tenant, thread, user)
    name = name or invited.name
    return await share_thread(runtime, tenant, thread, user, name=name, role=invited.role, event_id=event_id)


async def change_role(runtime: Runtime, tenant: str, thread: str, user: str, role: ParticipantRole) -> Participant:
    """Changes the role of a participant or an invited user. Raises NotFound if the user is neither, InvalidToken, and
    InvalidEvent for the role "owner"."""
    invited = await _entry(runtime, tenant, thread, user)
    return await share_thread(runtime, tenant, thread, user, name=invited.name, role=role, agreed=False)


async def unshare_thread(
    runtime: Runtime, tenant: str, thread: str, user: str, *, event_id: UUID | None = None
) -> None:
    """Ends a user's part in a conversation. The turns stay, and stay the user's. Raises NotFound, InvalidToken."""
    await _entry(runtime, tenant, thread, user)
    await _append(runtime, tenant, thread, user, ParticipantSet(), event_id)


async def is_participant(runtime: Runtime, tenant: str, thread: str, user: str) -> bool:
    """Returns whether the user takes part in, or is invited to, another user's conversation."""
    entries = await list_participants(runtime, tenant, thread)
    return any(participant.user == user and participant.role != "owner" for participant in entries)


async def speakers_of(runtime: Runtime, tenant: str, thread: str, user: str, names: Collection[str]) -> dict[str, str]:
    """Returns name → user for the names of participants who have agreed, ignoring case; other names are left out.

    Raises Forbidden for the name of another user if the user is not the owner.
    """
    if not names or not await runtime.log.thread_head(tenant, thread, "participant_set"):
        return {}
    async with runtime.reading(*READS, of=(tenant, thread)) as conn:
        known = await one_thread(conn, tenant, thread)
        users = {
            participant.name.casefold(): participant.user
            for participant in await participants_in(conn, tenant, thread)
            if participant.agreed
        }
    speakers = {name: users[name.casefold()] for name in names if name.casefold() in users}
    if known is None or known["user_id"] != user:
        for name, speaker in speakers.items():
            if speaker != user:
                raise Forbidden(f"{name!r} is another user in this conversation; only its owner appends their turns")
    return speakers


async def _entry(runtime: Runtime, tenant: str, thread: str, user: str) -> Participant:
    check_place(tenant, thread, user)
    for participant in await list_participants(runtime, tenant, thread):
        if participant.user == user:
            return participant
    raise NotFound(f"{user!r} has no part in a conversation {thread!r}")


async def _append(
    runtime: Runtime, tenant: str, thread: str, user: str, data: ParticipantSet, event_id: UUID | None
) -> None:
    event = Event(id=event_id or uuid7(), source=SOURCE, tenant=tenant, thread=thread, user=user, data=data)
    await runtime.log.append(event)
    await runtime.wait_until_thread_projected(tenant, thread, READS)
