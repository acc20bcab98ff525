"""Runs a command: settings, logging, a runtime, one use case, its result as lines or JSON, errors, exit code."""

import asyncio
import errno
import logging
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer
from rich.text import Text

from turnlog.agent.settings import Settings, load_settings
from turnlog.consumers.cli.confirming import someone_to_ask
from turnlog.consumers.cli.console import emit, emit_line, err, out, say
from turnlog.consumers.cli.options import given
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import check_tenant

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime

T = TypeVar("T")
_DISK_FULL, _DISK_FULL_IN_POSTGRES = (errno.ENOSPC, errno.EDQUOT), "53100"


def serve(
    use: "Callable[[Runtime], Awaitable[T]]",
    show: Callable[[T], Iterable[str | Text]],
    *,
    document: Callable[[T], Any] = lambda result: result,
    code: Callable[[T], int] = lambda _: 0,
    name: str = "turnlog",
    projecting: bool = True,
    first: Callable[[], object] = lambda: None,
    confirmed: bool = True,
) -> None:
    """Runs one use case to the exit code of the command.

    use: awaits the use case on the open runtime. show: the lines for people. document: what --json prints instead; the
    result itself when not given. code: the exit code for the result. projecting: apply events in this process from
    the start where no other process does; a use case that only reads needs it only when `settle` finds rows behind, and
    starts sooner without. first: checks of the options, before any server starts. confirmed: False where the command
    asks with `confirm` first.
    """

    async def work(settings: Settings) -> int:
        someone_to_ask(confirmed)
        first()
        from turnlog.consumers import runtime as composed

        applying = composed.projecting if projecting else composed.projecting_when_behind
        async with composed.opened(settings, name) as runtime, applying(runtime):
            result = await use(runtime)
        if given().json:
            emit(document(result))
        else:
            say(show(result))
        return code(result)

    run(work)


def stream(
    use: "Callable[[Runtime], AsyncIterator[T]]", show: Callable[[T], str], document: Callable[[T], Any]
) -> None:
    """Prints what a use case yields as it comes, a line each; with --json one JSON document a line."""

    async def work(settings: Settings) -> None:
        from turnlog.consumers.runtime import opened

        async with opened(settings) as runtime:
            async for item in use(runtime):
                if given().json:
                    emit_line(document(item))
                else:
                    out.print(show(item), markup=False)

    run(work)


def run(work: Callable[[Settings], Coroutine[Any, Any, int | None]], **changed: object) -> None:
    """Runs a command that opens what it needs itself, with the tenant it works for in the settings. An error becomes
    one line with its code, and with --json a document on stdout.

    changed: settings that come before those of the environment.
    """
    try:
        settings = load_settings(**changed)
        # An empty --tenant is a script's variable that was not set, and not the wish for the default: it is refused.
        tenant = settings.tenant if (asked := given().tenant) is None else asked
        settings = settings.model_copy(update={"tenant": check_tenant(tenant)})
        if settings.nats_url or settings.database_url:
            from turnlog.consumers.servers import without_own_addresses

            settings = without_own_addresses(settings)
        when = "" if sys.stderr.isatty() else "%(asctime)s "
        logging.basicConfig(
            level=settings.log_level.upper(), stream=sys.stderr, format=f"{when}%(levelname)s %(name)s: %(message)s"
        )
        sanitise_log_lines()
        code = asyncio.run(_cancelled_by_sigterm(work(settings))) or 0
        sys.stdout.flush()  # here, so that an error in the last lines still gets a code
    except TurnlogError as error:
        more = {"candidates": list(found)} if (found := getattr(error, "candidates", ())) else {}
        fail(error.code, str(error), **more)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(130) from None
    except BrokenPipeError:
        _leave_stdout()
        raise typer.Exit(0) from None
    except Exception as error:  # the last resort of the command line: an id and a cause, never a traceback
        _fail_unexpectedly(error)
    else:
        raise typer.Exit(code)


def fail(code: str, message: str, **more: Any) -> NoReturn:
    """Ends the command with exit code 1. With --json the error, with `more` in it, is the one document on stdout; where
    nothing can be written there, as on a full disk, it goes to stderr."""
    try:
        if given().json:
            emit_line({"error": {"code": code, "message": message, **more}})
            sys.stdout.flush()
            raise typer.Exit(1)
    except OSError:
        _leave_stdout()
    err.print(Text(f"error: {message} [{code}]", style="red"))
    raise typer.Exit(1)


async def _cancelled_by_sigterm(work: Coroutine[Any, Any, int | None]) -> int | None:
    """SIGTERM ends a command as Ctrl-C does: leases are given back, servers stopped, temporary folders removed."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _fail_unexpectedly(error: Exception) -> NoReturn:
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        fail("invalid-text", "an argument is not valid UTF-8; write it in UTF-8 and run this again")
    if getattr(error, "errno", None) in _DISK_FULL or getattr(error, "sqlstate", None) == _DISK_FULL_IN_POSTGRES:
        fail("disk-full", f"{str(error).splitlines()[0]}. Make room on that disk and run this again")
    reference = uuid.uuid4().hex[:8]
    logging.getLogger("turnlog").debug("internal error %s", reference, exc_info=error)
    cause = f"{type(error).__name__}: {error}"
    fail("internal-error", f"{cause} (reference {reference}; TURNLOG_LOG_LEVEL=DEBUG shows where)")


def _leave_stdout() -> None:
    """Nothing more is written to stdout, not at the end of the process either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class SanitisedLines(logging.Filter):
    """A filter for logging handlers that sanitises messages and tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        from turnlog.agent.sanitiser.sanitise import SanitiseLevel, sanitise

        record.msg, record.args = sanitise(record.getMessage(), SanitiseLevel.LIGHT), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = sanitise(record.exc_text, SanitiseLevel.LIGHT)
        return True


def sanitise_log_lines() -> None:
    """Adds the filter to every handler of the root logger, once each."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(one, SanitisedLines) for one in handler.filters):
            handler.addFilter(SanitisedLines())
