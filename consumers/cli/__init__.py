"""The command `turnlog`. Every command takes --json: one document on stdout; logs and progress go to stderr."""

import atexit
import gc
import os

import typer

from turnlog.consumers.cli.commands import Commands

app = typer.Typer(
    name="turnlog",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Event-sourced memory for chat agents."""


def main() -> None:
    """Runs the command line. Libraries are a million objects and no garbage: looking for some takes a third of a short
    command's time."""
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)
    # numpy is not loaded yet. Its threads spin while they wait for each other: on a busy machine 15 ms in place of 3.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    app()
