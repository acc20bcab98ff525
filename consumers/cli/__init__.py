"""The command `turnlog`. Every command takes --json: one document on stdout; logs and progress go to stderr."""

import typer

from turnlog.consumers.cli import (
    archiving,
    chatting,
    compactions,
    entities,
    erasing,
    extracting,
    history,
    jobs,
    keys,
    memories,
    operating,
    reading,
    rederiving,
    running,
    sessions,
    transfer,
)

app = typer.Typer(
    name="turnlog",
    help="Event-sourced memory for chat agents.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for module in (
    running,
    chatting,
    transfer,
    reading,
    history,
    operating,
    sessions,
    memories,
    extracting,
    entities,
    erasing,
    keys,
    jobs,
    rederiving,
    compactions,
    archiving,
):
    module.register(app)


def main() -> None:
    app()
