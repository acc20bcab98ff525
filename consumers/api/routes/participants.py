"""People in a conversation: its participants, and the caller's own invitations."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Response
from pydantic import Field

from turnlog.agent.access.identity import ACT_AS_USER, OPERATE
from turnlog.agent.conversations import participants
from turnlog.agent.conversations.participants import Invitation, Participant
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.principal import Reader, WriteId, Writer
from turnlog.consumers.api.routes.threads import ThreadId

router = APIRouter(prefix="/api", tags=["threads"])
User = Annotated[str, Path(min_length=1, max_length=255)]


class NewParticipant(RequestBody):
    """An invitation of a user. name: the name of the user's turns in the conversation, by default their id. role: a
    member reads and appends, a reader reads."""

    name: str | None = Field(None, min_length=1, max_length=255)
    role: Literal["reader", "member"] = "member"


@router.get("/invitations")
async def list_invitations(caller: Reader) -> list[Invitation]:
    """Lists conversations that others want to share with the caller, by id."""
    return await participants.list_invitations(*caller.person)


@router.get("/threads/{thread}/participants")
async def list_participants(thread: ThreadId, caller: Reader) -> list[Participant]:
    """Lists participants, and invitations not yet accepted, by user; the owner only if they have set a name."""
    return await participants.list_participants(*await caller.owns(thread, "reader"))


@router.put("/threads/{thread}/participants/{user}")
async def set_participant(
    thread: ThreadId, user: User, body: NewParticipant, caller: Writer, write_id: WriteId
) -> Participant:
    """Lets the owner share the conversation, or the caller accept an invitation with the role that it names.

    Sharing is an invitation, which has no effect until the user accepts it. For an operator, or a key that may act as
    users, it takes effect at once."""
    place = (caller.runtime, caller.tenant, thread)
    if user == caller.user and await participants.is_participant(*place, user):
        return await participants.join_thread(*place, user, body.name, event_id=write_id)
    owned = await caller.owns(thread)
    agreed = bool({ACT_AS_USER, OPERATE} & caller.identity.scopes)
    return await participants.share_thread(*owned, user, **dict(body), agreed=agreed, event_id=write_id)


@router.delete("/threads/{thread}/participants/{user}", status_code=204)
async def remove_participant(thread: ThreadId, user: User, caller: Writer, write_id: WriteId) -> Response:
    """Removes a participant: the owner removes a user, or the user leaves or declines. Their turns stay, under their
    name.
    """
    place = (caller.runtime, caller.tenant, thread)
    if user != caller.user or not await participants.is_participant(*place, user):
        place = await caller.owns(thread)
    await participants.unshare_thread(*place, user, event_id=write_id)
    return Response(status_code=204)
