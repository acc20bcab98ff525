"""The commands `log`: which log the rows belong to, what to do if another one is connected, and backups."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.agent.operations import analysis, log_identity
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import Result, warn
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.runner import Runtime, command, listed

Folder = Annotated[Path, typer.Argument(help="The folder to write or read.")]

app = commands()
below = group(app, "log", "Show which log the rows belong to; back up, restore or adopt the log.")


@listed(below, tenant=False)
async def status(rt: Runtime) -> Result:
    """Show which log is connected, and whether the rows were made from it. Exit code 1 if they were not."""
    return _result(await log_identity.log_status(rt))


@command(below, tenant=False, projecting=False)
async def adopt(rt: Runtime, yes: Yes = False) -> Result:
    """Keep the rows and continue with the connected log, although it is another one or lacks the rows' last events.

    Rows of events that only the earlier log had stay visible; a rebuild would lose them.
    """
    await _asked(rt, "Keep the rows, and continue with this log?", yes)
    return _result(await log_identity.adopt_log(rt))


@command(below, tenant=False)
async def rebuild(rt: Runtime, yes: Yes = False) -> Result:
    """Delete all rows and rebuild them from the connected log; rows of events that it lacks are lost."""
    await _asked(rt, "Delete all rows, and rebuild them from this log?", yes)
    with progress("rebuilding") as update:
        return _result(await log_identity.rebuild_from_log(rt, update))


@command(below, tenant=False, projecting=False)
async def backup(rt: Runtime, folder: Folder) -> Result:
    """Write the log and users' keys into a new folder, while they are in use. The key-encryption key is not in it."""
    made = await log_identity.back_up_log(rt, folder)
    return Result(made, f"{made.folder}: the log up to sequence {made.log:,}, the keys up to {made.keys:,}")


@command(below, tenant=False, projecting=False)
async def restore(rt: Runtime, folder: Folder, yes: Yes = False) -> Result:
    """Replace the connected log, which is deleted, by the log of a backup."""
    await _asked(rt, f"Delete this log, and restore {folder}?", yes)
    return _result(await log_identity.restore_log(rt, folder))


@command(below, projecting=False)
async def parquet(
    rt: Runtime,
    folder: Folder,
    since: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The first day, in UTC.")] = None,
    words: Annotated[
        bool,
        typer.Option(
            "--words",
            help="Include what users said, unencrypted. Erasure, redaction and retention do not reach these files.",
        ),
    ] = False,
) -> Result:
    """Write the tenant's events as Parquet, one file per day; DuckDB and pandas can read the folder."""
    day = None if since is None else since.date()
    made = await analysis.export_log(rt, rt.settings.tenant, folder, day, words)
    return Result(made, f"{made.folder}: {counted(made.events, 'event')} of {counted(made.days, 'day')}")


async def _asked(rt: Runtime, question: str, yes: bool) -> None:
    for line in () if yes else _lines(await log_identity.log_status(rt)):
        warn(line)
    await confirm(question, yes)


def _result(status: "log_identity.LogStatus") -> Result:
    return Result(status, _lines(status), code=int(status.problem is not None))


def _lines(status: "log_identity.LogStatus") -> Iterator[str]:
    yield f"log   {status.log}, up to sequence {status.head:,}"
    yield f"rows  {status.rows_from or 'of no log yet'}, up to sequence {status.rows_through:,}"
    if status.kept_through is not None:
        yield f"      rows up to sequence {status.kept_through:,} are kept from before this log was adopted"
    if status.problem is not None:
        yield f"FAIL  {status.problem}"
