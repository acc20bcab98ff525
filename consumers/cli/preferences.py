"""The command `preferences`: how a user wants to be answered, and whether to remember what they say."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from turnlog.agent.memory import preferences as preferences_of_users
from turnlog.consumers.cli.console import BadOption, Result
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import Table

app = commands()


@command(app, projecting=False)
async def preferences(
    rt: Runtime,
    user: Annotated[str, typer.Option("--user", "-u", help="Whose.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="NAME=VALUE, such as language=zh, secrets=mask or enable_memory=no; lists of the team as US,UK.",
        ),
    ] = None,
    cleared: Annotated[list[str] | None, typer.Option("--clear", help="Name of a preference to remove.")] = None,
) -> Result:
    """Show how a user wants to be answered, and whether to remember what they say; --set changes it.

    With enable_memory=no, nothing is extracted from what the user says, and no memory goes to a model. Preferences that
    are not set are taken from what the user said."""
    owner = (rt.settings.tenant, user)
    if given or cleared:
        chosen = await preferences_of_users.set_preferences(rt, *owner, _values(given or ()), cleared or ())
    else:
        chosen = await preferences_of_users.show_preferences(rt, *owner)
    values = [(name, _shown(value)) for name, value in chosen.model_dump().items()]
    return Result(chosen, Table(("PREFERENCE", "VALUE"), values))


def _values(pairs: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        name, sign, value = (part.strip() for part in pair.partition("="))
        if not sign or not name or not value:
            raise BadOption(f"--set {pair!r} cannot be read; write NAME=VALUE, or --clear NAME to remove it")
        values[name] = [part.strip() for part in value.split(",")] if "," in value else value
    return values


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    return "not set" if value is None else str(value)
