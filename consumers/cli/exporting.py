"""export: a thread's transcript, or the document of a user, to a file or to stdout (M9)."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from turnlog.agent.counting import counted
from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import BadOption, check_known, emit, pretty, report
from turnlog.consumers.cli.options import add, given
from turnlog.consumers.cli.runner import run
from turnlog.events.errors import TurnlogError

if TYPE_CHECKING:
    from turnlog.agent.sanitiser.sanitise import SanitiseLevel
    from turnlog.events.progress import OnProgress


class ExportFailed(TurnlogError):
    """The export cannot be written, or a level has no such name; nothing was left half-written."""

    code = "export-failed"


def register(app: typer.Typer) -> None:
    add(app, export)


def export(
    thread: Annotated[str | None, typer.Argument(help="A thread; or --user for all data of one.")] = None,
    format: Annotated[
        str, typer.Option(help="Of a thread: jsonl (--raw imports again to the same), openai.")
    ] = "jsonl",
    user: Annotated[str | None, typer.Option("--user", "-u", help="Everything of this user, as one document.")] = None,
    level: Annotated[str, typer.Option(help="What is masked: LIGHT, MODERATE or FULL.")] = "MODERATE",
    raw: Annotated[bool, typer.Option("--raw", help="Mask nothing.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File; stdout when not given.")] = None,
) -> None:
    """Write a thread's transcript as JSON lines or OpenAI messages, or all data of a user; sanitised."""

    async def work(settings: Settings) -> int:
        check_known("format", format, ("jsonl", "openai"))
        from turnlog.agent.importers import export_jsonl, export_openai
        from turnlog.agent.use_cases.personal_data import export_thread
        from turnlog.consumers.cli.progress_bars import progress
        from turnlog.consumers.runtime import opened, projecting

        masked = None if raw else _level_named(level)
        if user is not None and thread is None:
            with progress("exporting conversations") as shown:
                size = await write_user(settings, settings.tenant, user, masked, output, shown)
            if output is not None:
                made = {"user": user, "characters": size, "output": str(output)}
                report(made, f"wrote {size:,} characters to {output}")
            return 0
        if thread is None or user is not None:
            raise BadOption("say what to export: a thread, or --user USER")

        async with opened(settings) as runtime, projecting(runtime):
            found = await export_thread(runtime, settings.tenant, thread, masked)
        rows = found.turns
        lines = list(export_jsonl(rows, tenant=settings.tenant, thread=thread, label=found.label))
        if output is not None:
            with _whole_file(output) as file:
                file.write("".join(lines) if format == "jsonl" else pretty(export_openai(rows)) + "\n")
            wrote = {"thread": thread, "messages": len(rows), "output": str(output)}
            report(wrote, f"wrote {counted(len(rows), 'message')} to {output}")
        elif given().json or format == "openai":
            emit(export_openai(rows) if format == "openai" else [loads(line) for line in lines])
        else:
            print("".join(lines), end="")
        return 0

    run(work)


def _level_named(name: str) -> "SanitiseLevel":
    """Raises ExportFailed."""
    from turnlog.agent.sanitiser.sanitise import SanitiseLevel

    if name.upper() not in SanitiseLevel.__members__:
        raise ExportFailed(f"there is no level {name!r}; there are {', '.join(SanitiseLevel.__members__)}, and --raw")
    return SanitiseLevel[name.upper()]


async def write_user(
    settings: Settings,
    tenant: str,
    user: str,
    level: "SanitiseLevel | None",
    output: Path | None,
    progress: "OnProgress",
) -> int:
    """Returns how many characters it wrote. output: None is stdout. Raises ExportFailed."""
    from turnlog.agent.use_cases.personal_data import export_person
    from turnlog.consumers.runtime import opened, projecting

    size = 0
    async with opened(settings, "turnlog-export") as runtime, projecting(runtime):
        pieces = export_person(runtime, tenant, user, level, progress)
        with _whole_file(output) as file:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    size += file.write(piece)
    return size


@contextlib.contextmanager
def _whole_file(output: Path | None) -> Iterator[TextIO]:
    """A file comes into its place when it is whole, for its owner alone; a pipe or a device stays and is written to.

    None: stdout gets everything at the end, or nothing. Raises ExportFailed.
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
