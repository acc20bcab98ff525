"""Asking a person before what cannot be taken back. A script gives --yes."""

import sys
from typing import Annotated

import typer

from turnlog.consumers.cli.console import err, stdin_lines
from turnlog.consumers.cli.options import given
from turnlog.events.errors import TurnlogError

Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; needed with --json, and where stdin is not a terminal.")
]


class NotConfirmed(TurnlogError):
    """The answer was not yes, so nothing was changed."""

    code = "not-confirmed"


def someone_to_ask(yes: bool) -> None:
    """Comes before any other work. Raises NotConfirmed where a yes is needed and there is no terminal to ask at."""
    if yes:
        return
    if given().json:
        raise NotConfirmed("with --json there is no question, and nothing was changed; give --yes to confirm")
    if not sys.stdin.isatty():
        raise NotConfirmed("stdin is not a terminal, and nothing was changed; give --yes to have it done")


async def confirm(question: str, yes: bool) -> None:
    """Goes on after a yes, or without a question when one was given. Raises NotConfirmed after any other answer."""
    if yes:
        return
    err.print(f"{question} [y/N]: ", end="", markup=False)
    if (await anext(stdin_lines(), "")).strip().lower() not in ("y", "yes"):
        raise NotConfirmed("the answer was no, and nothing was changed")
