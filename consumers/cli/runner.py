"""Makes commands of functions and runs them: settings, logging, runtime, result, errors and exit code."""

import asyncio
import errno
import inspect
import logging
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer
from rich.text import Text

from turnlog.agent.memory.sanitiser import sanitise
from turnlog.agent.settings import Settings, load_settings
from turnlog.consumers import runtime as composed
from turnlog.consumers import servers
from turnlog.consumers.cli.confirming import someone_to_ask
from turnlog.consumers.cli.console import Result, emit_line, err, render
from turnlog.consumers.cli.options import given, unless_below, with_shared
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import check_tenant

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime as Runtime
else:
    Runtime = Any  # not imported, because --help and completion do not need its libraries

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_DISK_FULL, _DISK_FULL_IN_POSTGRES = (errno.ENOSPC, errno.EDQUOT), "53100"


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    tenant: bool = True,
    projecting: bool = True,
    process: str = "turnlog",
    checks: Callable[..., object] = lambda: None,
) -> Callable[[F], F]:
    """Makes a function a command of the app, with --json and, unless `tenant` is False, --tenant.

    Its parameters are options. A first parameter `rt` gets the open runtime; a first parameter `settings` is for a
    function that opens what it needs itself. The function returns a Result, which is printed. name: the command's name
    if it is not the function's. projecting: see `serve`. process: the name of the connections. checks: a function that
    is called before any server starts, with the options that it has parameters for. A parameter `yes` means that the
    command asks with `confirm` first, unless it is a `dry_run`.
    """

    def add(function: F) -> F:
        app.command(name)(_as_command(function, tenant, projecting, process, checks))
        return function

    return add


def listed(
    below: typer.Typer,
    *,
    tenant: bool = True,
    projecting: bool = False,
    checks: Callable[..., object] = lambda: None,
) -> Callable[[F], F]:
    """Makes a function the command that the group `below` runs if none of its commands is given; see `command`."""

    def add(function: F) -> F:
        made = _as_command(function, tenant, projecting, "turnlog", checks)
        below.callback(invoke_without_command=True, no_args_is_help=False)(unless_below(made))
        return function

    return add


def _as_command(
    function: Callable[..., Any], tenant: bool, projecting: bool, process: str, checks: Callable[..., object]
) -> Callable[..., None]:
    first = next(iter(inspect.signature(function).parameters), None)
    checked = inspect.signature(checks).parameters

    def on_runtime(**options: Any) -> None:
        def check() -> None:
            someone_to_ask(options.get("yes", True) or options.get("dry_run", False))
            checks(**{name: options[name] for name in checked})

        serve(lambda rt: function(rt, **options), check, process, projecting)

    def on_settings(**options: Any) -> None:
        run(lambda settings: function(settings, **options))

    ways = {"rt": on_runtime, "settings": on_settings}
    return with_shared(ways.get(first or "", function), function, int(first in ways), tenant)


def serve(
    use: Callable[[Runtime], Awaitable[Result | None]],
    check: Callable[[], object],
    process: str = "turnlog",
    projecting: bool = False,
) -> None:
    """Checks the options before any server starts, then awaits `use` on the open runtime and prints its result.

    projecting: whether this process applies events from the start if no other process does. A command that only reads
    starts sooner without it, and begins to apply events when a read first finds that rows are behind.
    """

    async def work(settings: Settings) -> Result | None:
        check()
        applying = composed.projecting if projecting else composed.projecting_when_behind
        async with composed.opened(settings, process) as runtime, applying(runtime):
            return await use(runtime)

    run(work)


def run(work: Callable[[Settings], Coroutine[Any, Any, Result | int | None]], **changed: object) -> None:
    """Runs a command, with its tenant in the settings, and exits with its exit code or its result's. An error becomes
    one line with its code; with --json, a document on stdout.

    changed: settings that override those of the environment.
    """
    try:
        settings = load_settings(**changed)
        # Refuses an empty --tenant: it comes from an unset variable in a script, and does not mean the default tenant.
        tenant = settings.tenant if (asked := given().tenant) is None else asked
        settings = settings.model_copy(update={"tenant": check_tenant(tenant)})
        if settings.nats_url or settings.database_url:
            settings = servers.without_own_addresses(settings)
        when = "" if sys.stderr.isatty() else "%(asctime)s "
        logging.basicConfig(
            level=settings.log_level.upper(), stream=sys.stderr, format=f"{when}%(levelname)s %(name)s: %(message)s"
        )
        sanitise_log_lines()
        result = asyncio.run(_cancelled_by_sigterm(work(settings)))
        code = render(result) if isinstance(result, Result) else result or 0
        sys.stdout.flush()  # flushed here, so that an error in the last lines still gets a code
    except TurnlogError as error:
        more = {"candidates": list(candidates)} if (candidates := getattr(error, "candidates", ())) else {}
        fail(error.code, str(error), **more)
    except typer.BadParameter:
        raise
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
    """Ends the command with exit code 1. With --json, the one document on stdout is the error with the fields of
    `more`. If stdout cannot be written, as on a full disk, it goes to stderr."""
    try:
        if given().json:
            emit_line({"error": {"code": code, "message": message, **more}})
            sys.stdout.flush()
            raise typer.Exit(1)
    except OSError:
        _leave_stdout()
    err.print(Text(f"error: {message} [{code}]", style="red"))
    raise typer.Exit(1)


async def _cancelled_by_sigterm(work: Coroutine[Any, Any, T]) -> T:
    """Ends a command at SIGTERM as Ctrl-C does: leases are given back, servers stopped, temporary folders removed."""
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
    """Discards all further output to stdout, also at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class SanitisedLines(logging.Filter):
    """A filter for logging handlers that sanitises messages and tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        light = sanitise.SanitiseLevel.LIGHT
        record.msg, record.args = sanitise.sanitise(record.getMessage(), light), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = sanitise.sanitise(record.exc_text, light)
        return True


def sanitise_log_lines() -> None:
    """Adds the filter to every handler of the root logger, once each."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(existing, SanitisedLines) for existing in handler.filters):
            handler.addFilter(SanitisedLines())
