"""limits, limits set, limits reset: how much users may ask for, and what one of them has left."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from turnlog.consumers.cli.console import BadOption
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.throttle.guards import Guard
    from turnlog.agent.use_cases.limits import Limits


def register(app: typer.Typer) -> None:
    limits = group(app, "limits", "How much users may ask for.", show)
    add(limits, change, "set")
    add(limits, reset)


def show(
    user: Annotated[str | None, typer.Option("--user", "-u", help="What this user has left.")] = None,
    role: Annotated[
        Literal["user", "vip", "admin"], typer.Option(help="The user's role: user, vip or admin.")
    ] = "user",
) -> None:
    """The limits of a tenant, or what one user has used of them and has left."""
    from turnlog.agent.use_cases.limits import limits_of, usage_left

    if user is None:
        serve(lambda rt: limits_of(rt, rt.settings.tenant), _limits, projecting=False)
    else:
        serve(
            lambda rt: usage_left(rt, rt.settings.tenant, user or "", role),
            lambda found: map(_left, found),
            projecting=False,
        )


def change(
    limits: Annotated[list[str], typer.Argument(help="NAME=NUMBER, such as user_per_minute=60.")],
    plan: Annotated[str, typer.Option(help="Whose: user, or vip (admins too).")] = "user",
) -> None:
    """Change limits; they hold for the next request."""
    from turnlog.agent.use_cases.limits import change_limits

    serve(lambda rt: change_limits(rt, rt.settings.tenant, plan, _numbers(limits)), _limits)


def reset(user: Annotated[str, typer.Option("--user", "-u", help="Whose.")]) -> None:
    """Let a user's windows begin empty; the quota stays as it is."""
    from turnlog.agent.use_cases.limits import reset_rate

    serve(lambda rt: reset_rate(rt, rt.settings.tenant, user), lambda _: ["the windows are empty"], projecting=False)


def _numbers(given: Sequence[str]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for one in given:
        name, _, number = one.partition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError:
            raise BadOption(f"{one!r} cannot be read; write NAME=NUMBER, such as user_per_minute=60") from None
    return numbers


def _limits(found: "Limits") -> Iterator[str]:
    yield f"{'':<24}" + "".join(f"{plan:>12}" for plan in found)
    for name in found["user"]:
        yield f"{name:<24}" + "".join(f"{limits[name]:>12,.10g}" for limits in found.values())


def _left(guard: "Guard") -> str:
    resets = f", resets {guard.resets_at:%Y-%m-%d %H:%M} UTC" if guard.resets_at else ""
    return f"{guard.name:<24} {guard.used:>12,.10g} of {guard.limit:>12,.10g} used, {guard.left:>12,.10g} left{resets}"
