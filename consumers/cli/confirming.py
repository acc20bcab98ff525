"""Asks a person to confirm what cannot be undone; a script gives --yes."""

import sys
from typing import Annotated

import typer

from turnlog.consumers.cli.console import err, stdin_lines
from turnlog.consumers.cli.options import given
from turnlog.events.errors import TurnlogError

Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask. Required with --json, and when stdin is not a terminal.")
]


class NotConfirmed(TurnlogError):
    """The answer was not yes, so nothing was changed."""

    code = "not-confirmed"


def someone_to_ask(yes: bool) -> None:
    """Raises NotConfirmed if a person must confirm and there is no terminal to ask on. Called before any other work."""
    if yes:
        return
    if given().json:
        raise NotConfirmed("--json cannot ask for confirmation, so nothing was changed; give --yes to confirm")
    if not sys.stdin.isatty():
        raise NotConfirmed("stdin is not a terminal, so nothing was changed; give --yes to confirm")


async def confirm(question: str, yes: bool) -> None:
    """Asks the question unless `yes` was given. Raises NotConfirmed after any answer but yes."""
    if yes:
        return
    err.print(f"{question} [y/N]: ", end="", markup=False)
    if (await anext(stdin_lines(), "")).strip().lower() not in ("y", "yes"):
        raise NotConfirmed("the answer was no, so nothing was changed")
