"""The commands `import` and `tail`: conversations from a file, and the log as it grows."""

import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.agent.operations import importers, importing, tailing
from turnlog.agent.settings import Settings
from turnlog.consumers import runtime as composed
from turnlog.consumers.cli.console import LAST_SEQ, Result, check_given, check_known, emit_line, out, warn
from turnlog.consumers.cli.options import Tenant, commands, given
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.runner import command, fail, run
from turnlog.events.subjects import check_conversation

STDIN = "-"


app = commands()


@command(app, "import")
def import_file(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL",
            help="The file, or - for stdin; .gz and a zipped export work too. A URL of mem0's or Zep's API, or the "
            "postgresql:// URL of LangGraph's checkpoints.",
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            help="openai, chatgpt, claude, open-webui, librechat, jsonl, mem0, zep or letta; default: detected.",
            autocompletion=lambda: [*importers.FORMATS],
        ),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Owner of the turns and memories.")] = None,
    thread: Annotated[str | None, typer.Option(help="Thread for all turns.")] = None,
    embed: Annotated[bool | None, typer.Option(help="Wait for vectors too. Default: for up to 1,000 turns.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is in the file; store nothing.")] = False,
) -> None:
    """Import conversations and memories. Importing the same file again adds nothing.

    Exit code 1 when a part of the file was rejected. Turns without a time are dated from 2000-01-01 on: with today's
    date, they would be different turns at the next import.
    """

    async def work(settings: Settings) -> Result:
        check_known("format", format, importers.FORMATS)
        check_given("user", user)
        if thread is not None:
            check_conversation(thread)
        defaults = importers.Defaults(tenant=settings.tenant, user=user, thread=thread)
        path, file_format, shown = source, format, "stdin" if file == STDIN else file
        if importing.is_url(file):
            key = settings.import_key.get_secret_value() if settings.import_key else None
            path, file_format = await asyncio.to_thread(importing.download, file, format, key, user, source)
            shown = path.name
        request = importing.ImportRequest(path, file_format, defaults, embed)
        with progress("importing") as appended, progress("projecting") as projected, progress("embedding") as vectors:
            try:
                prepared = importing.prepare_import(request)
                if dry_run:
                    made = importing.check_import(prepared)
                else:
                    async with composed.opened(settings, "turnlog-import") as rt, composed.projecting(rt):
                        made = await importing.import_conversations(rt, prepared, appended, projected, vectors)
            except importers.ImportFailed as error:
                raise importers.ImportFailed(str(error).replace(str(path), shown)) from error
        for rejected in made.rejected[:20]:
            warn(f"rejected: {rejected.where}: {rejected.error}")
        if made.ownerless:
            warn(
                f"{counted(made.ownerless, 'turn')} of nobody, since neither the file nor --user names a person: "
                "nothing is remembered from them, and no user of the API sees them. To give them an owner, remove "
                "their conversations with `turnlog threads delete`, and import the file with --user NAME and "
                "another --thread"
            )
        return Result(made.document(), made.lines(), code=int(made.rejected_count > 0))

    with ExitStack() as stack:
        try:
            if importing.is_url(file):
                source = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnlog-")))
            else:
                source = stack.enter_context(seekable(Path(file)))
        except OSError as error:
            fail("import-failed", f"{file} cannot be read: {error.strerror}")
        run(work)


@command(app, tenant=False)
async def tail(
    settings: Settings,
    start: Annotated[
        int | None, typer.Option("--from", min=0, max=LAST_SEQ, help="Sequence to start at. Default: only new events.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more events; --no-follow stops at the end of the log.")] = True,
    thread: Annotated[str | None, typer.Option(help="Only this thread.")] = None,
    tenant: Tenant = None,
) -> None:
    """Show events as they are stored (with --json, one document per line)."""
    async with composed.opened(settings) as rt:
        async for line in tailing.tail(rt, start, follow, tenant, thread):
            if given().json:
                emit_line(line.document())
            else:
                out.print(line.text(), markup=False)


@contextmanager
def seekable(path: Path) -> Iterator[Path]:
    """Yields the file itself; for a pipe, or '-' for standard input, a copy named `stdin` that lasts as long as the
    block.

    Waits for the end of the pipe. Called before an event loop runs, so that Ctrl-C and SIGTERM end the wait.
    Raises OSError.
    """
    is_stdin = path == Path(STDIN)
    if not is_stdin and not _is_pipe(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="turnlog-") as folder:
        copy = Path(folder) / "stdin"
        with (
            os.fdopen(os.dup(sys.stdin.fileno()), "rb") if is_stdin else path.open("rb") as source,
            copy.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
        yield copy


def _is_pipe(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except OSError:  # opening the file will raise an error that says why
        return False
