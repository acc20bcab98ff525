"""The commands `token` and `api-key`: credentials that say which user a program acts for."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import typer

from turnlog.agent.access import api_keys
from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import BadOption, Result, check_given
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import table

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
User = Annotated[str, typer.Option("--user", "-u", help="The user that it acts for.")]
Role = Annotated[str, typer.Option(help="user, vip or admin.", autocompletion=lambda: ["user", "vip", "admin"])]
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        help="What it may do: read, write, ask, erase, operate, keys, act-as-user. Default: all that the role may.",
        autocompletion=lambda: ["read", "write", "ask", "erase", "operate", "keys", "act-as-user"],
    ),
]

app = commands()
below = group(app, "api-key", "API keys: make, list, revoke.")


@command(app)
async def token(
    settings: Settings,
    user: User,
    role: Role = "user",
    ttl: Annotated[str, typer.Option(help="How long it is valid, such as 30m, 12h or 7d.")] = "12h",
    scope: Scopes = None,
) -> Result:
    """Print a token for a user. It is signed, not stored, and cannot be revoked; a key can."""
    made = api_keys.issue_token(settings, settings.tenant, user, role, _duration(ttl), scope)
    return Result(made, made.token)


@command(below)
async def create(
    rt: Runtime,
    user: User,
    role: Role = "user",
    scope: Scopes = None,
    label: Annotated[str | None, typer.Option(help="What it is for; shown by `api-key list`.")] = None,
    ttl: Annotated[
        str | None, typer.Option(help="How long it is valid, such as 90d. Default: until it is revoked.")
    ] = None,
) -> Result:
    """Make an API key. It is shown once: turnlog keeps only a digest of it."""
    valid = None if ttl is None else _duration(ttl)
    made = await api_keys.create_key(rt, rt.settings.tenant, user, role, scope, label, valid)
    return Result(made, [made.key, "Keep it now: it is not shown again."])


@command(below, "list", projecting=False, checks=lambda user: check_given("user", user))
async def list_(
    rt: Runtime, user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's.")] = None
) -> Result:
    """List the API keys of a tenant, without their secrets."""
    return table(await api_keys.list_keys(rt, rt.settings.tenant, user), _COLUMNS, "no API keys")


@command(below)
async def revoke(
    rt: Runtime, key_id: Annotated[str, typer.Argument(help="The key's id, as `api-key list` shows it.")]
) -> Result:
    """Revoke an API key; it is refused at once."""
    key = await api_keys.revoke_key(rt, rt.settings.tenant, key_id)
    return Result(key, f"revoked key {key.id} of user {key.user}")


def _duration(text: str) -> timedelta:
    parts = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if parts is None:
        raise BadOption(f"--ttl {text!r} cannot be read; write a number and s, m, h or d, such as 12h")
    return timedelta(**{_UNITS[parts[2]]: int(parts[1])})


def _state(key: "api_keys.KeyInfo") -> str:
    return f"revoked {key.revoked_at:%F}" if key.revoked_at else f"until {key.expires_at:%F}" if key.expires_at else ""


_COLUMNS: dict[str, Callable[["api_keys.KeyInfo"], Any]] = {
    "KEY": lambda key: key.id,
    "USER": lambda key: key.user,
    "ROLE": lambda key: key.role,
    "SCOPES": lambda key: ",".join(key.scopes),
    "LAST USE": lambda key: f"{key.used_at:%F %H:%M}" if key.used_at else "never",
    "STATE": _state,
    "LABEL": lambda key: key.label,
}
