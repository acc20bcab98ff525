"""The command `turnlog`. Every command takes --json: one document on stdout; logs and progress go to stderr."""

import atexit
import gc
import os

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
    """Libraries are a million objects and no garbage: to look for some takes a third of a short command's time."""
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)
    # numpy is not loaded yet. Its threads spin while they wait for each other: on a busy machine 15 ms in place of 3.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    app()
