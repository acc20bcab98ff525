"""The command `export`: writes a thread's transcript, or all data of a user, to a file or to stdout."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from json import loads
from pathlib import Path
from typing import Annotated, TextIO

import typer

from turnlog.agent.counting import counted
from turnlog.agent.memory.sanitiser import sanitise
from turnlog.agent.operations import importers
from turnlog.agent.privacy import personal_data
from turnlog.agent.settings import Settings
from turnlog.consumers import runtime as composed
from turnlog.consumers.cli.console import BadOption, check_known, emit, pretty, report
from turnlog.consumers.cli.options import commands, given
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.runner import command
from turnlog.events.errors import TurnlogError

app = commands()


class ExportFailed(TurnlogError):
    """The export cannot be written, or the level does not exist; no half-written file is left."""

    code = "export-failed"


@command(app)
async def export(
    settings: Settings,
    thread: Annotated[str | None, typer.Argument(help="A thread; or give --user for all data of a user.")] = None,
    format: Annotated[
        str,
        typer.Option(
            help="Format of a thread: jsonl (with --raw, an import restores it exactly) or openai.",
            autocompletion=lambda: ["jsonl", "openai"],
        ),
    ] = "jsonl",
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="Export everything of this user, as one document.")
    ] = None,
    level: Annotated[
        str,
        typer.Option(
            help="What is masked: LIGHT, MODERATE or FULL.", autocompletion=lambda: ["LIGHT", "MODERATE", "FULL"]
        ),
    ] = "MODERATE",
    raw: Annotated[bool, typer.Option("--raw", help="Mask nothing.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: stdout.")] = None,
) -> None:
    """Write a thread's transcript as JSON lines or OpenAI messages, or all data of a user. Personal details are masked
    unless --raw is given.
    """
    check_known("format", format, ("jsonl", "openai"))
    masked = None if raw else _level_named(level)
    if user is not None and thread is None:
        size = await write_user(settings, settings.tenant, user, masked, output)
        if output is not None:
            made = {"user": user, "characters": size, "output": str(output)}
            report(made, f"wrote {size:,} characters to {output}")
        return
    if thread is None or user is not None:
        raise BadOption("say what to export: a thread, or --user USER")

    async with composed.opened(settings) as runtime, composed.projecting(runtime):
        exported = await personal_data.export_thread(runtime, settings.tenant, thread, masked)
    turns = exported.turns
    label, costs = exported.label, exported.costs
    lines = list(importers.export_jsonl(turns, tenant=settings.tenant, thread=thread, label=label, costs=costs))
    if output is not None:
        with _whole_file(output) as file:
            file.write("".join(lines) if format == "jsonl" else pretty(importers.export_openai(turns)) + "\n")
        wrote = {"thread": thread, "messages": len(turns), "output": str(output)}
        report(wrote, f"wrote {counted(len(turns), 'message')} to {output}")
    elif given().json or format == "openai":
        emit(importers.export_openai(turns) if format == "openai" else [loads(line) for line in lines])
    else:
        print("".join(lines), end="")


def _level_named(name: str) -> "sanitise.SanitiseLevel":
    """Returns the level with this name. Raises ExportFailed."""
    levels = sanitise.SanitiseLevel.__members__
    if name.upper() not in levels:
        raise ExportFailed(f"there is no level {name!r}; there are {', '.join(levels)}, and --raw")
    return levels[name.upper()]


async def write_user(
    settings: Settings,
    tenant: str,
    user: str,
    level: "sanitise.SanitiseLevel | None",
    output: Path | None,
) -> int:
    """Writes all data of a user, and returns how many characters it wrote. output: None means stdout. Raises
    ExportFailed.
    """
    size = 0
    async with composed.opened(settings, "turnlog-export") as runtime, composed.projecting(runtime):
        with progress("exporting conversations") as update, _whole_file(output) as file:
            pieces = personal_data.export_person(runtime, tenant, user, level, update)
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    size += file.write(piece)
    return size


@contextlib.contextmanager
def _whole_file(output: Path | None) -> Iterator[TextIO]:
    """Yields a stream to write to. A file appears under its name only when it is complete, readable by its owner alone;
    a pipe or a device is written to directly.

    With None, stdout gets everything at the end, or nothing. Raises ExportFailed.
    """
    if output is None:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            yield file
            file.seek(0)
            shutil.copyfileobj(file, sys.stdout)
        return
    is_kept = output.exists() and not output.is_file()
    part = output if is_kept else output.with_name(output.name + ".part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            yield file
        if not is_kept:
            part.replace(output)
    except OSError as error:
        raise ExportFailed(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        if not is_kept:
            part.unlink(missing_ok=True)
