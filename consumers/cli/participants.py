"""The commands `participants`: users who take part in a conversation of another user."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

import typer

from turnlog.agent.conversations import participants, threads
from turnlog.consumers.cli.console import Result, check_known
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import table

ROLES = ("member", "reader")
Thread = Annotated[str, typer.Argument(help="The conversation's id.")]
User = Annotated[str, typer.Argument(help="Who takes part.")]
Name = Annotated[str | None, typer.Option(help="Name under which their turns appear. Default: their id.")]

app = commands()
below = group(app, "participants", "Share conversations with members, who read and append, and with readers.")


def check_role(role: str) -> None:
    check_known("role", role, ROLES)


@command(below, "list", projecting=False)
async def list_(rt: Runtime, thread: Thread) -> Result:
    """List participants, and invitations not yet accepted; the owner only if they have set a name."""
    await threads.get_thread(rt, rt.settings.tenant, thread)
    entries = await participants.list_participants(rt, rt.settings.tenant, thread)
    return table(entries, _COLUMNS, "only its owner takes part", _document)


@command(below, projecting=False)
async def invitations(
    rt: Runtime, user: Annotated[str, typer.Option("--user", "-u", help="Who was invited.")]
) -> Result:
    """List invitations that a user has not yet accepted."""
    waiting = await participants.list_invitations(rt, rt.settings.tenant, user)
    return table(waiting, _INVITATION_COLUMNS, "no invitations")


@command(below, checks=check_role)
async def invite(
    rt: Runtime,
    thread: Thread,
    user: User,
    name: Name = None,
    role: Annotated[
        str, typer.Option(help="member: reads and appends; reader: reads.", autocompletion=lambda: [*ROLES])
    ] = "member",
    agreed: Annotated[
        bool, typer.Option("--agreed", help="They have agreed elsewhere, so it takes effect at once.")
    ] = False,
) -> Result:
    """Invite a user to a conversation. The invitation has no effect until they accept it."""
    invited = await participants.share_thread(
        rt, rt.settings.tenant, thread, user, name=name, role=_role(role), agreed=agreed
    )
    return _shown(thread, invited)


@command(below)
async def accept(rt: Runtime, thread: Thread, user: User, name: Name = None) -> Result:
    """Accept an invitation on behalf of its user, under the name that the owner chose or another one."""
    return _shown(thread, await participants.join_thread(rt, rt.settings.tenant, thread, user, name))


@command(below, checks=check_role)
async def role(
    rt: Runtime,
    thread: Thread,
    user: User,
    role: Annotated[str, typer.Argument(help="member or reader.", autocompletion=lambda: [*ROLES])],
) -> Result:
    """Change what a participant may do. They do not have to accept again."""
    return _shown(thread, await participants.change_role(rt, rt.settings.tenant, thread, user, _role(role)))


@command(below)
async def remove(rt: Runtime, thread: Thread, user: User) -> Result:
    """Remove a user from a conversation, or withdraw their invitation. Their turns stay, under their name."""
    await participants.unshare_thread(rt, rt.settings.tenant, thread, user)
    return Result({"thread": thread, "removed": user}, f"{user} no longer takes part in {thread}")


def _role(text: str) -> Literal["reader", "member"]:
    return cast(Literal["reader", "member"], text)


def _shown(thread: str, participant: "participants.Participant") -> Result:
    state = "takes part in" if participant.agreed else "is invited to"
    sentence = f"{participant.user} {state} {thread} as {participant.name}, {participant.role}"
    return Result({"thread": thread} | _document(participant), sentence)


def _document(participant: "participants.Participant") -> dict[str, Any]:
    return {"user": participant.user, "name": participant.name, "role": participant.role, "agreed": participant.agreed}


_COLUMNS: dict[str, Callable[["participants.Participant"], Any]] = {
    "USER": lambda participant: participant.user,
    "ROLE": lambda participant: participant.role,
    "STATE": lambda participant: "" if participant.agreed else "invited",
    "NAME": lambda participant: participant.name,
}
_INVITATION_COLUMNS: dict[str, Callable[["participants.Invitation"], Any]] = {
    "THREAD": lambda invitation: invitation.thread,
    "OWNER": lambda invitation: invitation.owner,
    "ROLE": lambda invitation: invitation.role,
    "NAME": lambda invitation: invitation.name,
}
