"""Finds server processes, starts them in separate sessions, and ends them.

A server is identified by its name and working folder. The kernel knows both even if every pid file is lost, and another
process with a reused pid does not have them. So no stored state can become stale.
"""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from turnlog.agent.private_files import open_private
from turnlog.consumers.servers.errors import ServerStartFailed, ServerStopFailed
from turnlog.consumers.servers.server_user import Identity

POLL_SECONDS = 0.03
# The caller's environment (PGPORT, PGOPTIONS, LC_ALL, ...) must not change how a server behaves.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}


def alive(process: psutil.Process) -> bool:
    """Returns whether this process (not a later process with the same pid) still runs; False for a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def cmdline(process: psutil.Process) -> list[str]:
    """Returns the command line; [] if the process has ended or belongs to another user."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def parent(process: psutil.Process) -> int | None:
    """Returns the pid of the parent; None if the process has ended."""
    try:
        return process.ppid()
    except psutil.Error:
        return None


def running(folder: Path, *names: str) -> list[psutil.Process]:
    """Returns all running processes that have one of the names and whose working folder is `folder` or inside it."""
    return [process for process in _perhaps_in(folder) if _works_in(process, folder, names)]


def _perhaps_in(folder: Path) -> Iterator[psutil.Process]:
    """Yields the processes that may work in `folder`.

    On Linux one cheap call per process excludes nearly all others. psutil reads several files of each process, which
    took two thirds of the time of a command on embedded servers.
    """
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):  # it has ended or belongs to another user
            if not psutil.LINUX or str(Path(f"/proc/{pid}/cwd").readlink()).startswith(str(folder)):
                yield psutil.Process(pid)


def _works_in(process: psutil.Process, folder: Path, names: Sequence[str]) -> bool:
    try:
        return process.name() in names and alive(process) and Path(process.cwd()).is_relative_to(folder)
    except psutil.Error:
        return False


@dataclass(frozen=True, slots=True)
class Launched:
    """A started server. offset: the byte at which its part of the log file begins."""

    process: "subprocess.Popen[bytes]"
    log: Path
    offset: int

    def alive(self) -> bool:
        return self.process.poll() is None

    def failure(self, what: str) -> ServerStartFailed:
        with self.log.open("rb") as log:
            log.seek(self.offset)
            lines = log.read().decode("utf-8", "replace").splitlines()[-12:]
        return ServerStartFailed("\n  ".join([f"{what}. The last lines of {self.log}:", *lines]))


def launch(argv: Sequence[str | Path], folder: Path, log: Path, identity: Identity | None) -> Launched:
    """Starts a server that outlives this process and does not receive its Ctrl-C. It writes no core dump, because a
    core dump could contain personal data. Raises ServerStartFailed."""
    with os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND), "ab") as out:
        offset = out.tell()
        if identity is not None:
            os.fchown(out.fileno(), identity.uid, identity.gid)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", 'ulimit -c 0; exec "$@"', "sh", *(str(arg) for arg in argv)],
                cwd=folder,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                umask=0o077,
                user=identity.uid if identity else None,
                group=identity.gid if identity else None,
                extra_groups=[] if identity else None,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerStartFailed(f"cannot run {argv[0]}: {error}") from error
    # Collects the exit status; otherwise a stopped server would stay a zombie until this process ends.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    return Launched(process, log, offset)


async def wait_until(ready: Callable[[], Awaitable[bool]], lives: Callable[[], bool], timeout: float) -> bool:
    """Polls `ready` until it is true; returns False if the server ends or `timeout` seconds pass first."""
    deadline = asyncio.get_running_loop().time() + timeout
    while asyncio.get_running_loop().time() < deadline:
        if await ready():
            return True
        if not lives():
            return False
        await asyncio.sleep(POLL_SECONDS)
    return False


async def end(
    leaders: Sequence[psutil.Process],
    steps: Sequence[tuple[signal.Signals, float]],
    everyone: Callable[[], list[psutil.Process]],
) -> None:
    """Ends processes: sends each signal of `steps` to the leaders, waits its seconds for all of `everyone` to end, then
    sends SIGKILL to the rest.

    Raises ServerStopFailed if a process belongs to another user or survives SIGKILL.
    """
    for step, patience in steps:
        _send(leaders, step)
        if await wait_until(lambda: _gone(leaders, everyone), lambda: True, patience):
            return
    _send(everyone(), signal.SIGKILL)
    if not await wait_until(lambda: _gone(leaders, everyone), lambda: True, 10):
        raise ServerStopFailed(f"these processes do not end: {[p.pid for p in everyone()]}")


def _send(processes: Sequence[psutil.Process], step: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(step)
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied as error:
            raise ServerStopFailed(f"process {process.pid} belongs to another user; stop it as that user") from error


async def _gone(leaders: Sequence[psutil.Process], everyone: Callable[[], list[psutil.Process]]) -> bool:
    return not any(map(alive, leaders)) and not everyone()
