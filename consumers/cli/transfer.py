"""import, export, tail: conversations in and out, and the log as it happens."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from json import loads
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import LAST_SEQ, BadOption, check_given, emit, err, pretty, report
from turnlog.consumers.cli.options import Tenant, add, given
from turnlog.consumers.cli.runner import fail, run, stream
from turnlog.events.subjects import check_conversation

if TYPE_CHECKING:
    from turnlog.agent.privacy.sanitise import SanitiseLevel

STDIN = Path("-")


def register(app: typer.Typer) -> None:
    add(app, import_file, "import")
    add(app, export_thread, "export")
    add(app, tail, tenant=False)


def import_file(
    file: Annotated[Path, typer.Argument(help="The file, or - for stdin; .gz and ChatGPT's .zip too.")],
    format: Annotated[
        str | None, typer.Option(help="openai, chatgpt, locomo, jsonl or memorybank; found out when not given.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Owner of the turns.")] = None,
    thread: Annotated[str | None, typer.Option(help="Thread for all of them.")] = None,
    embed: Annotated[bool | None, typer.Option(help="Wait for vectors too; by default up to 1,000 turns.")] = None,
) -> None:
    """Import conversations. The same file again adds nothing.

    Turns without a time are dated from 2000-01-01 on: a date of the day would make others of them the next time.
    """
    from turnlog.consumers.cli.progress_bars import progress

    async def work(settings: Settings) -> int:
        from turnlog.agent.importers import FORMATS, Defaults, ImportFailed
        from turnlog.agent.use_cases.importing import ImportRequest, import_conversations, prepare_import
        from turnlog.consumers.runtime import opened, projecting

        _check_format(format, FORMATS)
        check_given("user", user)
        if thread is not None:
            check_conversation(thread)
        request = ImportRequest(source, format, Defaults(tenant=settings.tenant, user=user, thread=thread), embed)
        with progress("importing") as appended, progress("projecting") as projected, progress("embedding") as vectors:
            try:
                prepared = prepare_import(request)
                async with opened(settings, "turnlog-import") as runtime, projecting(runtime):
                    made = await import_conversations(runtime, prepared, appended, projected, vectors)
            except ImportFailed as error:
                raise ImportFailed(str(error).replace(str(source), "stdin" if file == STDIN else str(file))) from error
        for rejected in made.rejected[:20]:
            err.print(f"rejected: {rejected.where}: {rejected.error}", markup=False)
        report(made.document(), *filter(None, (made.sentence(), made.backlog())))
        return int(made.nothing_but_rejected)

    with ExitStack() as stack:
        try:
            source = stack.enter_context(seekable(file))
        except OSError as error:
            fail("import-failed", f"{file} cannot be read: {error.strerror}")
        run(work)


def export_thread(
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
        _check_format(format, ("jsonl", "openai"))
        from turnlog.agent.importers import export_jsonl, export_openai
        from turnlog.agent.use_cases.personal_data import export_transcript
        from turnlog.consumers.cli.exporting import level_named, whole_file
        from turnlog.consumers.runtime import opened, projecting

        masked = None if raw else level_named(level)
        if user is not None and thread is None:
            return await _export_user(settings, settings.tenant, user, masked, output)
        if thread is None or user is not None:
            raise BadOption("say what to export: a thread, or --user USER")

        async with opened(settings) as runtime, projecting(runtime):
            rows = await export_transcript(runtime, settings.tenant, thread, masked)
        lines = list(export_jsonl(rows, tenant=settings.tenant, thread=thread))
        if output is not None:
            with whole_file(output) as file:
                file.write("".join(lines) if format == "jsonl" else pretty(export_openai(rows)) + "\n")
            made = {"thread": thread, "messages": len(rows), "output": str(output)}
            report(made, f"wrote {counted(len(rows), 'message')} to {output}")
        elif given().json or format == "openai":
            emit(export_openai(rows) if format == "openai" else [loads(line) for line in lines])
        else:
            print("".join(lines), end="")
        return 0

    run(work)


async def _export_user(
    settings: Settings, tenant: str, user: str, level: "SanitiseLevel | None", output: Path | None
) -> int:
    from turnlog.consumers.cli.exporting import write_user
    from turnlog.consumers.cli.progress_bars import progress

    with progress("exporting conversations") as shown:
        size = await write_user(settings, tenant, user, level, output, shown)
    if output is not None:
        made = {"user": user, "characters": size, "output": str(output)}
        report(made, f"wrote {size:,} characters to {output}")
    return 0


def tail(
    start: Annotated[
        int | None, typer.Option("--from", min=0, max=LAST_SEQ, help="Sequence to start at; only new events if absent.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more; --no-follow ends at the log's end.")] = True,
    thread: Annotated[str | None, typer.Option(help="Only this thread.")] = None,
    tenant: Tenant = None,
) -> None:
    """Show events as they are stored (with --json one document a line)."""

    from turnlog.agent.use_cases import tailing

    stream(
        lambda rt: tailing.tail(rt, start, follow, tenant, thread),
        lambda line: line.text(),
        lambda line: line.document(),
    )


def _check_format(format: str | None, known: Iterable[str]) -> None:
    if format is not None and format not in known:
        raise BadOption(f"there is no format {format!r}; there are {', '.join(known)}")


@contextmanager
def seekable(path: Path) -> Iterator[Path]:
    """The file itself; of a pipe, or of '-' for standard input, a copy named `stdin` that lasts as long as the block.

    Waits for the end of what is piped, so it comes before an event loop runs: Ctrl-C and SIGTERM end the waiting.
    Raises OSError.
    """
    if path != STDIN and not _is_pipe(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="turnlog-") as folder:
        copy = Path(folder) / "stdin"
        with _piped(path) as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
        yield copy


def _is_pipe(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except OSError:  # whoever opens it says why it cannot be read
        return False


def _piped(path: Path) -> IO[bytes]:
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb") if path == STDIN else path.open("rb")
