"""The command `turnlog`. Every command takes --json: one document on stdout; logs and progress go to stderr."""

import typer

from turnlog.consumers.cli import chatting, history, operating, reading, running, sessions, transfer

app = typer.Typer(
    name="turnlog",
    help="Event-sourced memory for chat agents.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for module in (running, chatting, transfer, reading, history, operating, sessions):
    module.register(app)


def main() -> None:
    app()
