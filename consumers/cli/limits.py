"""limits, limits set, limits reset: how much users may ask for, and what one of them has left."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from turnlog.agent.access import limits as use_case
from turnlog.consumers.cli.console import BadOption, Result, rows
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command, listed

if TYPE_CHECKING:
    from turnlog.agent.access.throttle.guards import Guard

app = commands()
below = group(app, "limits", "How much users may ask for.")


@listed(below)
async def show(
    rt: Runtime,
    user: Annotated[str | None, typer.Option("--user", "-u", help="What this user has left.")] = None,
    role: Annotated[
        Literal["user", "vip", "admin"], typer.Option(help="The user's role: user, vip or admin.")
    ] = "user",
) -> Result:
    """The limits of a tenant, or what one user has used of them and has left."""
    if user is not None:
        return rows(await use_case.usage_left(rt, rt.settings.tenant, user, role), _left)
    found = await use_case.limits_of(rt, rt.settings.tenant)
    return Result(found, _limits(found))


@command(below, "set")
async def change(
    rt: Runtime,
    limits: Annotated[list[str], typer.Argument(help="NAME=NUMBER, such as user_per_minute=60.")],
    plan: Annotated[str, typer.Option(help="Whose: user, or vip (admins too).")] = "user",
) -> Result:
    """Change limits; they hold for the next request."""
    found = await use_case.change_limits(rt, rt.settings.tenant, plan, _numbers(limits))
    return Result(found, _limits(found))


@command(below, projecting=False)
async def reset(rt: Runtime, user: Annotated[str, typer.Option("--user", "-u", help="Whose.")]) -> Result:
    """Let a user's windows begin empty; the quota stays as it is."""
    await use_case.reset_rate(rt, rt.settings.tenant, user)
    return Result(None, "the windows are empty")


def _numbers(given: Sequence[str]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for one in given:
        name, _, number = one.partition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError:
            raise BadOption(f"{one!r} cannot be read; write NAME=NUMBER, such as user_per_minute=60") from None
    return numbers


def _limits(found: "use_case.Limits") -> Iterator[str]:
    yield f"{'':<24}" + "".join(f"{plan:>12}" for plan in found)
    for name in found["user"]:
        yield f"{name:<24}" + "".join(f"{plan[name]:>12,.10g}" for plan in found.values())


def _left(guard: "Guard") -> str:
    resets = f", resets {guard.resets_at:%Y-%m-%d %H:%M} UTC" if guard.resets_at else ""
    return f"{guard.name:<24} {guard.used:>12,.10g} of {guard.limit:>12,.10g} used, {guard.left:>12,.10g} left{resets}"
