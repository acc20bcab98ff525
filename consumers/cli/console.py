"""What commands share: options, output, errors and progress bars."""

import asyncio
import errno
import json
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from turnlog.agent.privacy.log_lines import sanitise_log_lines
from turnlog.agent.settings import Settings, load_settings
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import check_id, check_tenant

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Tenant = Annotated[str | None, typer.Option(help="Tenant; TURNLOG_TENANT or 'default'.")]

# NATS takes no larger one.
LAST_SEQ = 2**63 - 1
_NO_ROOM, _NO_ROOM_IN_POSTGRES = (errno.ENOSPC, errno.EDQUOT), "53100"
# All but line breaks and tabs, as the sign for what cannot be shown.
_UNSHOWN = {place: "\ufffd" for place in (*range(32), *range(127, 160)) if chr(place) not in "\n\t"}


class BadOption(TurnlogError):
    """An option of a command has a value that cannot be used."""

    code = "bad-option"


class Words(Console):
    """Shows what people said and never obeys it: an escape sequence in it could steer the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for one in super().render(renderable, options):
            yield one if one.control else Segment(one.text.translate(_UNSHOWN), one.style)

    def on_broken_pipe(self) -> None:
        """Whoever read has enough, as `head` has. That is the end and no error: `run` says so."""
        raise BrokenPipeError


out = Words(highlight=False, soft_wrap=True)
err = Words(stderr=True, highlight=False, soft_wrap=True)


def tenant_of(settings: Settings, given: str | None) -> str:
    """The tenant a command works for. Raises InvalidToken, for an empty one too: it is a script's variable that was
    not set, and not the wish for the default."""
    return check_tenant(settings.tenant if given is None else given)


def check_given(kind: str, value: str | None) -> None:
    """Raises InvalidToken for a user or thread id that is given and can be nobody's."""
    if value is not None:
        check_id(kind, value)


def run(work: Callable[[Settings], Coroutine[Any, Any, int | None]], as_json: bool = False) -> None:
    """Runs a command to its exit code. Expected errors become one line; unexpected ones one line with an id."""
    try:
        settings = load_settings()
        logging.basicConfig(
            level=settings.log_level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
        )
        sanitise_log_lines()
        code = asyncio.run(_ended_by_sigterm(work(settings))) or 0
    except TurnlogError as error:
        fail(error.code, str(error), as_json)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(130) from None
    except BrokenPipeError:
        _leave_stdout()
        raise typer.Exit(0) from None
    except Exception as error:  # the last resort of the command line: an id and a cause, never a traceback
        if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
            fail("invalid-text", "an argument is no valid UTF-8; write it in UTF-8 and run this again", as_json)
        if getattr(error, "errno", None) in _NO_ROOM or getattr(error, "sqlstate", None) == _NO_ROOM_IN_POSTGRES:
            fail("disk-full", f"{str(error).splitlines()[0]}. Make room on that disk and run this again", as_json)
        reference = uuid.uuid4().hex[:8]
        logging.getLogger("turnlog").debug("internal error %s", reference, exc_info=error)
        fail(
            "internal-error",
            f"{type(error).__name__}: {error} (reference {reference}; TURNLOG_LOG_LEVEL=DEBUG shows where)",
            as_json,
        )
    else:
        raise typer.Exit(code)


async def _ended_by_sigterm(work: Coroutine[Any, Any, int | None]) -> int | None:
    """SIGTERM ends a command as Ctrl-C does: leases are given back, servers stopped, temporary folders removed."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def fail(code: str, message: str, as_json: bool) -> None:
    """With --json the error is the one document on stdout: whoever reads it looks there. Where nothing can be written,
    as on a full disk, stderr tells it."""
    try:
        if as_json:
            emit_line({"error": {"code": code, "message": message}})
            raise typer.Exit(1)
    except OSError:
        _leave_stdout()
    err.print(Text(f"error: {message} [{code}]", style="red"))
    raise typer.Exit(1)


def _leave_stdout() -> None:
    """Nothing more is written to it, not at the end of the process either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit(document: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(to_jsonable_python(document), ensure_ascii=False, indent=2) + "\n")


def emit_line(document: Any) -> None:
    """One JSON document on one line, for streams."""
    sys.stdout.write(json.dumps(to_jsonable_python(document), ensure_ascii=False) + "\n")
    sys.stdout.flush()


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="progress.data.speed")


@contextmanager
def progress(label: str, total: float | None = None) -> Iterator[Callable[[float, float | None], None]]:
    """A bar on stderr with rate and time left; yields update(completed, total). Silent where no one watches."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total)

        def update(completed: float, total: float | None = None) -> None:
            bar.update(task, completed=completed, total=total)

        yield update
