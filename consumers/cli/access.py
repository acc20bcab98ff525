"""token, key: what a program shows to say who it acts for (S3)."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.consumers.cli.console import BadOption, check_given, report
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import run, serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.settings import Settings
    from turnlog.agent.use_cases.access import KeyInfo, NewKey

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
User = Annotated[str, typer.Option("--user", "-u", help="The user that it acts for.")]
Role = Annotated[str, typer.Option(help="user, vip or admin.")]
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope", help="What it may do: read, write, ask, erase, operate, keys, act-as-user. All of the role."
    ),
]


def register(app: typer.Typer) -> None:
    add(app, token)
    key = group(app, "key", "API keys: make, list, revoke.")
    add(key, create)
    add(key, list_, "list")
    add(key, revoke)


def token(
    user: User,
    role: Role = "user",
    ttl: Annotated[str, typer.Option(help="How long it is valid, such as 30m, 12h or 7d.")] = "12h",
    scope: Scopes = None,
) -> None:
    """Print a token for a user. It is signed, not stored, and cannot be revoked; a key can."""
    from turnlog.agent.use_cases.access import issue_token

    async def work(settings: "Settings") -> None:
        made = issue_token(settings, settings.tenant, user, role, _duration(ttl), scope)
        report(made, made.token)

    run(work)


def create(
    user: User,
    role: Role = "user",
    scope: Scopes = None,
    label: Annotated[str | None, typer.Option(help="What it is for; shown by `key list`.")] = None,
    ttl: Annotated[str | None, typer.Option(help="How long it is valid, such as 90d. Until it is revoked.")] = None,
) -> None:
    """Make an API key. It is shown once: turnlog keeps only a digest of it."""
    from turnlog.agent.use_cases.access import create_key

    async def use(runtime: "Runtime") -> "NewKey":
        valid = None if ttl is None else _duration(ttl)
        return await create_key(runtime, runtime.settings.tenant, user, role, scope, label, valid)

    serve(use, _created)


def list_(user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's.")] = None) -> None:
    """List the API keys of a tenant, without their secrets."""
    from turnlog.agent.use_cases.access import list_keys

    serve(
        lambda rt: list_keys(rt, rt.settings.tenant, user),
        lambda keys: [_line(one) for one in keys],
        projecting=False,
        first=lambda: check_given("user", user),
    )


def revoke(key_id: Annotated[str, typer.Argument(help="The key's id, as `key list` shows it.")]) -> None:
    """Revoke an API key; it is refused at once."""
    from turnlog.agent.use_cases.access import revoke_key

    serve(
        lambda rt: revoke_key(rt, rt.settings.tenant, key_id), lambda key: [f"revoked key {key.id} of user {key.user}"]
    )


def _duration(text: str) -> timedelta:
    parts = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if parts is None:
        raise BadOption(f"--ttl {text!r} cannot be read; write a number and s, m, h or d, such as 12h")
    return timedelta(**{_UNITS[parts[2]]: int(parts[1])})


def _created(made: "NewKey") -> Iterator[str]:
    yield made.key
    yield "Keep it now: it is not shown again."


def _line(key: "KeyInfo") -> str:
    now = f"revoked {key.revoked_at:%F}" if key.revoked_at else f"until {key.expires_at:%F}" if key.expires_at else ""
    used = f"used {key.used_at:%F %H:%M}" if key.used_at else "never used"
    return "  ".join(filter(None, (key.id, key.user, key.role, ",".join(key.scopes), used, now, key.label)))
