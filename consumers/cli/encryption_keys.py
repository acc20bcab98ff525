"""The commands `encryption-key`: the keys that encrypt users' words in the log."""

from collections.abc import Iterator
from typing import Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.agent.privacy.keys import kek, key_status
from turnlog.consumers.cli.console import Result, report
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command

app = commands()
below = group(app, "encryption-key", "Manage the keys that encrypt users' words in the log.")


@command(below, tenant=False, projecting=False)
async def status(rt: Runtime) -> Result:
    """Show which key-encryption key is in use, and how many keys of users it wraps."""
    keys = await key_status.key_status(rt)
    return Result(keys, _status_lines(keys))


@command(below, "new-kek", tenant=False)
def new_kek() -> None:
    """Print a new value for TURNLOG_KEK. It is not stored."""
    made = kek.new_kek()
    report({"kek": made}, made)


@command(below, projecting=False)
async def rotate(rt: Runtime, user: Annotated[str, typer.Option(help="Whose key.")]) -> Result:
    """Give a user a new key for new events; the old one still opens what it sealed."""
    made = await key_status.rotate_key(rt, rt.settings.tenant, user)
    return Result(made, f"user {user} has key {made.key_id} from now on")


@command(below, tenant=False, projecting=False)
async def rewrap(rt: Runtime) -> Result:
    """Encrypt every user's key again under TURNLOG_KEK, after a change of it; needs TURNLOG_KEK_OLD."""
    made = await key_status.rewrap_keys(rt)
    wrapped = f"{counted(made.rewrapped, 'key')} wrapped again"
    return Result(made, f"{wrapped}; all are under key-encryption key {made.kek}")


def _status_lines(status: "key_status.KeyStatus") -> Iterator[str]:
    if status.kek is None:
        yield "Users' words in the log are not encrypted: there is no key-encryption key. Set TURNLOG_KEK to"
        yield "what `turnlog encryption-key new-kek` prints; what is said from then on is encrypted."
        return
    yield f"key-encryption key {status.kek.id} from {status.kek.source}"
    for use in status.keys:
        old = "" if use.kek_id == status.kek.id else "  old: `turnlog encryption-key rewrap`"
        counts = f"keys: {use.current:,} seal, {use.retired:,} only open, {use.destroyed:,} destroyed"
        yield f"{use.kek_id}  {counted(use.users, 'user')}, {counts}{old}"
