"""import, tail: conversations from a file, and the log as it happens."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import LAST_SEQ, check_given, check_known, err, report
from turnlog.consumers.cli.options import Tenant, add
from turnlog.consumers.cli.runner import fail, run, stream
from turnlog.events.subjects import check_conversation

STDIN = Path("-")


def register(app: typer.Typer) -> None:
    add(app, import_file, "import")
    add(app, tail, tenant=False)


def import_file(
    file: Annotated[Path, typer.Argument(help="The file, or - for stdin; .gz and the zip of an export too.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="openai, chatgpt, claude, open-webui, librechat, locomo, jsonl or memorybank; detected if not given."
        ),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Owner of the turns.")] = None,
    thread: Annotated[str | None, typer.Option(help="Thread for all of them.")] = None,
    embed: Annotated[bool | None, typer.Option(help="Wait for vectors too; by default up to 1,000 turns.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is in the file, and store nothing.")] = False,
) -> None:
    """Import conversations. The same file again adds nothing. Exit code 1 when a part of the file was rejected.

    Turns without a time are dated from 2000-01-01 on: a date of the day would make others of them the next time.
    """
    from turnlog.consumers.cli.progress_bars import progress

    async def work(settings: Settings) -> int:
        from turnlog.agent.importers import FORMATS, Defaults, ImportFailed
        from turnlog.agent.use_cases.importing import (
            ImportRequest,
            check_import,
            import_conversations,
            prepare_import,
        )
        from turnlog.consumers.runtime import opened, projecting

        check_known("format", format, FORMATS)
        check_given("user", user)
        if thread is not None:
            check_conversation(thread)
        request = ImportRequest(source, format, Defaults(tenant=settings.tenant, user=user, thread=thread), embed)
        with progress("importing") as appended, progress("projecting") as projected, progress("embedding") as vectors:
            try:
                prepared = prepare_import(request)
                if dry_run:
                    made = check_import(prepared)
                else:
                    async with opened(settings, "turnlog-import") as runtime, projecting(runtime):
                        made = await import_conversations(runtime, prepared, appended, projected, vectors)
            except ImportFailed as error:
                raise ImportFailed(str(error).replace(str(source), "stdin" if file == STDIN else str(file))) from error
        for rejected in made.rejected[:20]:
            err.print(f"rejected: {rejected.where}: {rejected.error}", markup=False)
        report(made.document(), *made.lines())
        return int(made.rejected_count > 0)

    with ExitStack() as stack:
        try:
            source = stack.enter_context(seekable(file))
        except OSError as error:
            fail("import-failed", f"{file} cannot be read: {error.strerror}")
        run(work)


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
    except OSError:  # opening it will say why
        return False


def _piped(path: Path) -> IO[bytes]:
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb") if path == STDIN else path.open("rb")
