"""The commands `limits`, `limits set` and `limits reset`: how much users may ask for, and what a user has left."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnlog.agent.access import limits as limits_of_users
from turnlog.consumers.cli.console import BadOption, Result
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command, listed
from turnlog.consumers.cli.text_tables import table

if TYPE_CHECKING:
    from turnlog.agent.access.throttle.guards import Guard

app = commands()
below = group(app, "limits", "How much users may ask for.")


@listed(below)
async def show(
    rt: Runtime,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Show what this user has left.")] = None,
    role: Annotated[
        Literal["user", "vip", "admin"], typer.Option(help="The user's role: user, vip or admin.")
    ] = "user",
) -> Result:
    """Show the limits of a tenant, or what one user has used and has left."""
    if user is not None:
        return table(await limits_of_users.usage_left(rt, rt.settings.tenant, user, role), LEFT)
    return _limits(await limits_of_users.limits_of(rt, rt.settings.tenant))


@command(below, "set")
async def change(
    rt: Runtime,
    limits: Annotated[list[str], typer.Argument(help="NAME=NUMBER, such as user_per_minute=60.")],
    plan: Annotated[str, typer.Option(help="Plan: user, or vip (which admins have too).")] = "user",
) -> Result:
    """Change limits, from the next request on."""
    return _limits(await limits_of_users.change_limits(rt, rt.settings.tenant, plan, _numbers(limits)))


@command(below, projecting=False)
async def reset(rt: Runtime, user: Annotated[str, typer.Option("--user", "-u", help="Whose.")]) -> Result:
    """Empty a user's windows; the quota stays as it is."""
    await limits_of_users.reset_rate(rt, rt.settings.tenant, user)
    return Result(None, "the windows are empty")


def _numbers(pairs: Sequence[str]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError:
            raise BadOption(f"{pair!r} cannot be read; write NAME=NUMBER, such as user_per_minute=60") from None
    return numbers


def _limits(by_plan: "limits_of_users.Limits") -> Result:
    plans = {plan.upper(): lambda name, limits=limits: _number(limits[name]) for plan, limits in by_plan.items()}
    return Result(by_plan, table(list(by_plan["user"]), {"LIMIT": lambda name: name, **plans}).lines)


def _number(value: float) -> str:
    return f"{value:,.10g}"


LEFT: dict[str, Callable[["Guard"], Any]] = {
    "LIMIT": lambda guard: guard.name,
    "USED": lambda guard: _number(guard.used),
    "OF": lambda guard: _number(guard.limit),
    "LEFT": lambda guard: _number(guard.left),
    "RESETS (UTC)": lambda guard: f"{guard.resets_at:%F %H:%M}" if guard.resets_at else "",
}
