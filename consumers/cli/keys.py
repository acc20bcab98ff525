"""keys: what encrypts users' words in the log."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.consumers.cli.console import report
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.use_cases.keys import KeyStatus


def register(app: typer.Typer) -> None:
    keys = group(app, "keys", "The keys that encrypt users' words in the log.")
    add(keys, status, tenant=False)
    add(keys, new_kek, "new-kek", tenant=False)
    add(keys, rotate)
    add(keys, rewrap, tenant=False)


def status() -> None:
    """Which key-encryption key is in use, and how many keys of users it wraps."""
    from turnlog.agent.use_cases.keys import key_status

    serve(key_status, _status_lines, projecting=False)


def new_kek() -> None:
    """Print a new value for TURNLOG_KEK. It is not stored."""
    from turnlog.agent.privacy import kek

    made = kek.new_kek()
    report({"kek": made}, made)


def rotate(user: Annotated[str, typer.Option(help="Whose key.")]) -> None:
    """Give a user a new key for new events; the old one still opens what it sealed."""
    from turnlog.agent.use_cases.keys import rotate_key

    serve(
        lambda rt: rotate_key(rt, rt.settings.tenant, user),
        lambda made: [f"user {user} has key {made.key_id} from now on"],
        projecting=False,
    )


def rewrap() -> None:
    """Encrypt every user's key again under TURNLOG_KEK, after a change of it; needs TURNLOG_KEK_OLD."""
    from turnlog.agent.use_cases.keys import rewrap_keys

    serve(
        rewrap_keys,
        lambda made: [f"{counted(made.rewrapped, 'key')} wrapped again; all are under key-encryption key {made.kek}"],
        projecting=False,
    )


def _status_lines(found: "KeyStatus") -> Iterator[str]:
    if found.kek is None:
        yield "Users' words in the log are not encrypted: there is no key-encryption key. Set TURNLOG_KEK to"
        yield "what `turnlog keys new-kek` prints; it holds for what is said from then on."
        return
    yield f"key-encryption key {found.kek.id} from {found.kek.source}"
    for one in found.keys:
        old = "" if one.kek_id == found.kek.id else "  old: `turnlog keys rewrap`"
        counts = f"keys: {one.current:,} seal, {one.retired:,} only open, {one.destroyed:,} destroyed"
        yield f"{one.kek_id}  {counted(one.users, 'user')}, {counts}{old}"
