"""preferences: how a user wants to be answered, and whether to remember what they say (E 10.5)."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.consumers.cli.console import BadOption
from turnlog.consumers.cli.options import add
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.events.contracts import UserPreferences

_LISTS = ("school_regions", "school_size", "school_type")


def register(app: typer.Typer) -> None:
    add(app, preferences)


def preferences(
    user: Annotated[str, typer.Option("--user", "-u", help="Whose.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="NAME=VALUE, such as language=zh, timezone=Asia/Shanghai or enable_memory=no; lists as US,UK."
        ),
    ] = None,
    cleared: Annotated[list[str] | None, typer.Option("--clear", help="A name to set no longer.")] = None,
) -> None:
    """How a user wants to be answered, and whether to remember what they say; --set changes it.

    With enable_memory=no nothing is extracted from what the user says, and no memory goes to a model. What is not set
    is read from what the user said."""
    from turnlog.agent.use_cases.preferences import set_preferences, show_preferences

    async def use(runtime: "Runtime") -> "UserPreferences":
        place = (runtime.settings.tenant, user)
        if given or cleared:
            return await set_preferences(runtime, *place, _values(given or ()), cleared or ())
        return await show_preferences(runtime, *place)

    serve(use, _lines, projecting=bool(given or cleared))


def _values(given: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for one in given:
        name, sign, value = (part.strip() for part in one.partition("="))
        if not sign or not name or not value:
            raise BadOption(f"--set {one!r} cannot be read; write NAME=VALUE, or --clear NAME to set it no longer")
        values[name] = [part.strip() for part in value.split(",")] if name in _LISTS else value
    return values


def _lines(found: "UserPreferences") -> Iterator[str]:
    for name, value in found.model_dump().items():
        yield f"{name:<20}  {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, tuple) else value or "not set"
