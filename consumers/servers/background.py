"""Runs `turnlog up` as one process per home: locks the home, starts and ends the process, and keeps its servers
running."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg

from turnlog.agent.operations.role_processes import forget_killed
from turnlog.agent.private_files import open_private, private_folder
from turnlog.agent.settings import Settings
from turnlog.consumers.servers import servers
from turnlog.consumers.servers.errors import folder_errors
from turnlog.consumers.servers.home import home_at, try_lock
from turnlog.consumers.servers.processes import alive, end
from turnlog.events.errors import TurnlogError
from turnlog.events.heartbeats import Heartbeat, Heartbeats

logger = logging.getLogger("turnlog.servers")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0
POLL_S = 0.1
WATCH_S = 0.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
# If a server ran for at least this many seconds, it is restarted without a pause.
STEADY_S = 60.0
KEEP_ROUND_S = 2 * LONGEST_PAUSE_S


class AlreadyUp(TurnlogError):
    """`turnlog up` is already running for this data folder."""

    code = "already-up"


class NotUp(TurnlogError):
    """`turnlog up` is not running for this data folder."""

    code = "not-up"


def lock_path(settings: Settings) -> Path:
    """Returns the lock file of this home's `up`, which holds the lock while it runs. The file contains "PID", once
    ready "PID API-URL"."""
    return home_at(settings.home).path / "up"


def log_path(settings: Settings) -> Path:
    return settings.home / "turnlog.log"


def running_pid(settings: Settings) -> int | None:
    """Returns the pid of this home's `up`, even while it starts; None if it is not running or is a zombie."""
    path = lock_path(settings)
    try:
        process = psutil.Process(int(path.read_text("utf-8").split()[0]))
        return process.pid if any(file.path == str(path) for file in process.open_files()) else None
    except (OSError, ValueError, IndexError, psutil.Error):
        return None


def running_url(settings: Settings) -> str:
    """Returns the URL of the API of this home's `up`. Raises NotUp."""
    said = lock_path(settings).read_text("utf-8") if running_pid(settings) is not None else ""
    _, _, url = said.partition(" ")
    if not url:
        raise NotUp(f"`turnlog up` is not running for {settings.home}; start it, or give the API's URL with --url")
    return url


@contextlib.contextmanager
def only_one(settings: Settings) -> Iterator[Callable[[str], None]]:
    """Makes this process the `up` of the home. Yields a function to call with the API's URL once it is ready. Raises
    AlreadyUp."""
    with folder_errors(settings.home):
        private_folder(settings.home)
        lock = open_private(lock_path(settings), os.O_RDWR)
    try:
        if not try_lock(lock):
            raise _already_up(settings)
        _write(lock, str(os.getpid()))
        yield lambda url: _write(lock, f"{os.getpid()} {url}")
    finally:
        os.close(lock)


def _write(file: int, text: str) -> None:
    os.pwrite(file, text.encode(), 0)
    os.ftruncate(file, len(text))


def _already_up(settings: Settings) -> AlreadyUp:
    pid = running_pid(settings)
    return AlreadyUp(
        f"turnlog is already up for {settings.home}{f' (pid {pid})' if pid else ''}; `turnlog down` ends it"
    )


async def start(settings: Settings) -> tuple[int, str]:
    """Starts `up` detached from the terminal, waits until it is ready, and returns its pid and the URL of its API.

    Raises AlreadyUp, TurnlogError.
    """
    if running_pid(settings) is not None:
        raise _already_up(settings)
    with folder_errors(settings.home):
        private_folder(settings.home)
        log = open_private(log_path(settings), os.O_WRONLY | os.O_APPEND)
    try:
        command = [sys.executable, "-m", "turnlog.consumers.cli", "up"]
        child = await asyncio.to_thread(
            lambda: subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        )
    finally:
        os.close(log)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            return child.pid, await _ready(settings, child)
    except TimeoutError:
        raise TurnlogError(
            f"turnlog is not ready after {START_TIMEOUT_S:g} s and is still starting: see {log_path(settings)}; "
            "`turnlog down` ends it"
        ) from None


async def _ready(settings: Settings, child: "subprocess.Popen[bytes]") -> str:
    while True:
        said = lock_path(settings).read_text("utf-8") if lock_path(settings).exists() else ""
        pid, _, url = said.partition(" ")
        if pid == str(child.pid) and url:
            return url
        if child.poll() is not None:
            if running_pid(settings) is not None:  # another process was faster
                raise _already_up(settings)
            raise _not_started(log_path(settings))
        await asyncio.sleep(POLL_S)


async def stop(settings: Settings) -> int | None:
    """Ends this home's `up` with SIGTERM, then SIGKILL; returns its pid, or None if none was running.

    Raises ServerStopFailed.
    """
    pid = running_pid(settings)
    if pid is None:
        return None
    process = psutil.Process(pid)
    await end([process], [(signal.SIGTERM, STOP_TIMEOUT_S)], lambda: [process] if alive(process) else [])
    return pid


async def forget_killed_up(settings: Settings) -> None:
    """Removes a killed `up` from the list of processes, so that its roles are not reported as missing after `down`."""
    if settings.database_url or servers.status(settings.home).postgres is not None:
        with contextlib.suppress(TurnlogError, psycopg.Error):
            url = settings.database_url or (await servers.start(settings.home)).database_url
            await forget_killed(url)


@contextlib.asynccontextmanager
async def kept_servers(settings: Settings, nats_url: str, beats: Heartbeats) -> AsyncIterator[None]:
    """Restarts embedded servers that end while the block runs, unless `servers.stop` has ended them."""
    if settings.nats_url and settings.database_url:
        yield
        return
    await servers.keep(settings.home)
    # All clients know the port, so the server waits for the port if another program has taken it.
    port = (urlsplit(nats_url).port or 0) if settings.nats_url is None else 0
    watch = partial(_watch, settings.home, port)
    async with beats.running("process", "keep-servers", watch, asyncio.Event(), KEEP_ROUND_S):
        yield


async def _watch(home: Path, nats_port: int, beat: Heartbeat) -> None:
    loop, flag = asyncio.get_running_loop(), home_at(home).keep_flag
    watched, pause, tried = _processes(home), 0.0, -STEADY_S
    while True:
        beat.beat()
        await asyncio.sleep(WATCH_S)
        gone = " and ".join(name for name, process in watched.items() if process is None or not alive(process))
        if not gone or not flag.exists():
            continue
        pause = 0.0 if loop.time() - tried > STEADY_S else min(max(2 * pause, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        logger.warning("%s ended unexpectedly and is started again in %g s", gone, pause)
        await asyncio.sleep(pause)
        try:
            await servers.start(home, nats_port)
            watched = _processes(home)
            logger.warning("%s runs again", gone)
        except TurnlogError as error:
            logger.error("%s does not start: %s", gone, error)
        tried = loop.time()


def _processes(home: Path) -> dict[str, psutil.Process | None]:
    now = servers.status(home)
    return {"nats-server": now.nats, "Postgres": now.postgres}


def _not_started(log: Path) -> TurnlogError:
    """Returns an error with the message and code from the last line of the log, if that line is an error."""
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    last = lines[-1] if lines else f"see {log}"
    said = re.fullmatch(r"error: (.*) \[([a-z-]+)\]", last)
    error = TurnlogError(f"turnlog did not start: {said[1] if said else last}")
    error.code = said[2] if said else error.code
    return error
