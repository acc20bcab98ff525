"""log: which log the rows belong to, ways out where it is another one, backups."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import err
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.logs import LogStatus

Folder = Annotated[Path, typer.Argument(help="The backup's folder.")]


def register(app: typer.Typer) -> None:
    log = group(app, "log", "Which log the rows belong to; back up, restore, adopt.", status, tenant=False)
    for command in (adopt, rebuild, backup, restore):
        add(log, command, tenant=False)


def status() -> None:
    """Which log is connected, and whether the rows were made from it. Exit 1 when they were not."""
    from turnlog.agent.use_cases.logs import log_status

    serve(log_status, _lines, code=_code, projecting=False)


def adopt(yes: Yes = False) -> None:
    """Keep the rows and go on with the connected log after them, where it is another one or lacks their last events.

    Events that only the other log had stay visible, and a rebuild would lose their rows.
    """
    from turnlog.agent.use_cases.logs import adopt_log

    async def use(runtime: "Runtime") -> "LogStatus":
        await _asked(runtime, "Keep the rows, and go on with this log?", yes)
        return await adopt_log(runtime)

    serve(use, _lines, code=_code, projecting=False, confirmed=yes)


def rebuild(yes: Yes = False) -> None:
    """Delete all rows and make them again from the connected log; what it lacks is lost."""
    from turnlog.agent.use_cases.logs import rebuild_from_log
    from turnlog.consumers.cli.progress_bars import progress

    async def use(runtime: "Runtime") -> "LogStatus":
        await _asked(runtime, "Delete all rows, and make them again from this log?", yes)
        with progress("rebuilding") as update:
            return await rebuild_from_log(runtime, update)

    serve(use, _lines, code=_code, confirmed=yes)


def backup(folder: Folder) -> None:
    """Write the log and users' keys into a new folder, while they are in use. The key-encryption key is not in it."""
    from turnlog.agent.use_cases.logs import back_up_log

    serve(
        lambda rt: back_up_log(rt, folder),
        lambda made: [f"{made.folder}: the log up to sequence {made.log:,}, the keys up to {made.keys:,}"],
        projecting=False,
    )


def restore(folder: Folder, yes: Yes = False) -> None:
    """Put the log of a backup in the place of the connected one, which is deleted."""
    from turnlog.agent.use_cases.logs import restore_log

    async def use(runtime: "Runtime") -> "LogStatus":
        await _asked(runtime, f"Delete this log, and restore {folder}?", yes)
        return await restore_log(runtime, folder)

    serve(use, _lines, code=_code, projecting=False, confirmed=yes)


async def _asked(runtime: "Runtime", question: str, yes: bool) -> None:
    from turnlog.agent.use_cases.logs import log_status

    for line in () if yes else _lines(await log_status(runtime)):
        err.print(line, markup=False)
    await confirm(question, yes)


def _code(found: "LogStatus") -> int:
    return int(found.problem is not None)


def _lines(found: "LogStatus") -> Iterator[str]:
    yield f"log   {found.log}, up to sequence {found.head:,}"
    yield f"rows  {found.rows_from or 'of no log yet'}, up to sequence {found.rows_through:,}"
    if found.kept_through is not None:
        yield f"      rows up to sequence {found.kept_through:,} are kept from before this log was adopted"
    if found.problem is not None:
        yield f"FAIL  {found.problem}"
