"""The commands `up`, `down`, `page`, `serve`, `worker`, `doctor` and `env`: processes and servers."""

import asyncio
import contextlib
import gc
import getpass
import shlex
import signal
import sys
import webbrowser
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from turnlog.agent.access import api_keys
from turnlog.agent.operations import checkup, model_checkup
from turnlog.agent.privacy.keys import key_status
from turnlog.agent.settings import Settings
from turnlog.consumers import roles, runtime, servers
from turnlog.consumers.cli.console import Result, emit, err, report, rows
from turnlog.consumers.cli.options import commands, given
from turnlog.consumers.cli.runner import Runtime, command, run
from turnlog.consumers.servers import background
from turnlog.events.errors import LogUnavailable, TurnlogError

if TYPE_CHECKING:
    from turnlog.events.log import Log

Partitions = Annotated[
    str | None, typer.Option(help="Partitions to work on, such as 0-3 or 0,2. Default: workers share them.")
]


app = commands()


@command(app, tenant=False)
async def up(
    settings: Settings,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Run in the background; `turnlog down` ends it.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the web page in a browser.")] = False,
) -> None:
    """Start the servers (unless their addresses are set) and play every role until Ctrl-C or `turnlog down`."""
    key_status.refuse_plaintext(settings)
    if detach:
        pid, url = await background.start(settings)
        log = str(background.log_path(settings))
        where = {"pid": pid, "home": str(settings.home), "log": log, "api_url": url}
        report(where, f"turnlog runs in the background at {url} (pid {pid}); log: {log}")
        if open_page:
            async with runtime.opened(settings, "turnlog-page") as rt:
                _open(await page_link(rt, url))
        return
    port_file = None if "api_port" in settings.model_fields_set else settings.home.expanduser() / "api-port"
    with background.only_one(settings) as say_ready:
        async with (
            runtime.opened(settings, "turnlog-up") as rt,
            roles.playing(rt, roles.ROLES, shared=True, metrics_port=settings.metrics_port, port_file=port_file),
            background.kept_servers(settings, rt.nats_url, rt.heartbeats),
            _until_signal() as stopped,
        ):
            say_ready(rt.api_url or "")
            ready = {"nats_url": rt.nats_url.rsplit("@", 1)[-1], "home": str(settings.home), "roles": list(roles.ROLES)}
            # The output of a server in the background goes to a log, which must not contain a ticket.
            is_seen = sys.stdout.isatty() or open_page
            link = await page_link(rt, rt.api_url or "") if is_seen else f"{rt.api_url}/page/"
            said = f"turnlog is up ({', '.join(roles.ROLES)}) at {rt.api_url}; Ctrl-C ends it"
            report(ready | {"api_url": rt.api_url, "page": link}, f"{said}\n{_page_line(link)}")
            if open_page:
                _open(link)
            await _ended(stopped, rt.log)
            err.print("finishing running work …")
        if not settings.nats_url or not settings.database_url:
            await servers.stop(settings.home)


@command(app)
async def page(
    rt: Runtime,
    user: Annotated[str | None, typer.Option("--user", "-u", help="User to sign in. Default: your login name.")] = None,
    url: Annotated[str | None, typer.Option(help="URL of the API. Default: that of this home's `turnlog up`.")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the link in a browser.")] = False,
) -> Result:
    """Print a link that signs in to the web page. It works once, within ten minutes."""
    link = await page_link(rt, url or background.running_url(rt.settings), user)
    if open_page:
        _open(link)
    return Result({"page": link}, link)


async def page_link(rt: Runtime, url: str, user: str | None = None) -> str:
    """Returns a link to the web page of the API at a URL, which signs in as an admin of the tenant. user: None means
    the login name. The ticket follows a #, so the browser does not send it and no log contains it."""
    ticket = await api_keys.issue_sign_in_ticket(rt, rt.settings.tenant, login_name() if user is None else user)
    return f"{url}/page/#ticket={ticket}"


def login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "me"


def _open(link: str) -> None:
    if not webbrowser.open(link):
        err.print(f"there is no browser here; open {link}")


def _page_line(link: str) -> str:
    signs_in = "signs in to the web page, once within ten minutes" if "#" in link else "is the web page"
    return f"{link} {signs_in}; `turnlog page` prints a link that signs in"


@command(app, tenant=False)
async def down(settings: Settings) -> Result:
    """Stop what `up` started: its roles, then the embedded servers. Data stays."""
    ended = await background.stop(settings)
    if ended is None:
        await background.forget_killed_up(settings)
    await servers.stop(settings.home)
    said = "stopped" if ended else "`turnlog up` was not running; the servers are stopped"
    return Result({"stopped": True, "pid": ended}, said)


@command(app, tenant=False)
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: TURNLOG_API_HOST or 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 picks a free one. Default: TURNLOG_API_PORT or 8484.")
    ] = None,
) -> None:
    """Serve the HTTP API in this process until a signal; `turnlog up` or workers play the other roles."""
    changed = {name: value for name, value in (("api_host", host), ("api_port", port)) if value is not None}
    run(lambda settings: worker(settings, "api"), **changed)


@command(app, tenant=False)
async def worker(
    settings: Settings,
    role: Annotated[
        str,
        typer.Argument(
            help="projectors, reactors, agent, analytics, jobs or api.", autocompletion=lambda: [*roles.ROLES]
        ),
    ],
    partitions: Partitions = None,
) -> None:
    """Play one role in this process until a signal."""
    key_status.refuse_plaintext(settings)
    if role not in roles.ROLES:
        raise TurnlogError(f"there is no role {role!r}; there are {', '.join(roles.ROLES)}")
    async with runtime.opened_in_time(settings, f"turnlog-worker-{role}", err.print) as rt:
        chosen = parse_partitions(partitions, rt.log.partitions)
        async with roles.playing(rt, [role], chosen, chosen is None, settings.metrics_port):
            where = {"api_url": rt.api_url} if rt.api_url else {}
            said = f"worker {role} runs" + "".join(f" at {url}" for url in where.values())
            report({"role": role, "partitions": chosen} | where, said)
            async with _until_signal() as stopped:
                await _ended(stopped, rt.log)


@command(app, tenant=False)
async def doctor(
    settings: Settings,
    model: Annotated[bool, typer.Option("--model", help="Also test what the models can do, with real calls.")] = False,
) -> Result:
    """Check settings, servers, schema, projections and models. Exit code 1 if something is wrong."""
    findings = await checkup.checkup(settings, lambda: runtime.opened(settings, "turnlog-doctor"))
    if model:
        findings += await model_checkup.configured_models(settings)
    return replace(rows(findings, _finding_lines), code=int(not all(finding.ok for finding in findings)))


@command(app, tenant=False)
async def env(settings: Settings) -> None:
    """Print the addresses of the servers for other programs, including secrets: eval "$(turnlog env)"."""
    async with runtime.servers(settings) as where:
        variables = {"NATS_URL": where.nats_url, "DATABASE_URL": where.database_url}
    nats = urlsplit(where.nats_url.split(",")[0])
    if nats.username and nats.password:  # also separately, because nats.js and others ignore them in the URL
        variables |= {"NATS_USER": unquote(nats.username), "NATS_PASSWORD": unquote(nats.password)}
    if where.started:
        err.print("the servers are not running; `turnlog up` starts them at these addresses")
    if given().json:
        emit(variables)
    else:
        print(*(f"export {name}={shlex.quote(value)}" for name, value in variables.items()), sep="\n")


def _finding_lines(finding: "checkup.Finding") -> Iterator[str]:
    state = "FAIL" if not finding.ok else "warn" if finding.warning else "ok"
    yield f"{state:<4}  {finding.check:<16} {finding.detail}"
    if finding.fix:
        yield f"      {'':<16} → {finding.fix}"


def parse_partitions(text: str | None, count: int) -> list[int] | None:
    """Returns the partitions of a text such as '0-3,5'. Raises TurnlogError for a partition that the stream does not
    have.
    """
    if text is None:
        return None
    try:
        spans = [part.split("-") for part in text.split(",")]
        chosen = sorted({n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)})
    except ValueError:
        raise TurnlogError(f"cannot read partitions {text!r}; write 0-3 or 0,2") from None
    if outside := [n for n in chosen if n not in range(count)]:
        raise TurnlogError(f"the stream has no partition {outside[0]}, only 0 to {count - 1} (TURNLOG_PARTITIONS)")
    return chosen


@contextlib.asynccontextmanager
async def _until_signal() -> AsyncIterator[asyncio.Event]:
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    try:
        yield stopped
    finally:
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(name)


async def _ended(stopped: asyncio.Event, log: "Log") -> None:
    """Waits for a signal. Raises LogUnavailable if NATS closes the connection, so that a supervisor restarts the
    process.
    """
    leave_out_of_garbage()
    waits = [asyncio.create_task(event.wait()) for event in (stopped, log.closed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if not stopped.is_set():
        raise LogUnavailable("NATS closed the connection permanently (see the server's log); start this process again")


def leave_out_of_garbage() -> None:
    """Excludes everything loaded so far from garbage collection. A collection over it would stop the server for a tenth
    of a second or more every few dozen contexts, and none of it becomes garbage before the process ends."""
    gc.collect()
    gc.freeze()
