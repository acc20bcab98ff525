"""`turnlog up` as one process per home: its pid file, in the foreground and in the background."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from turnlog.agent.settings import Settings
from turnlog.consumers.servers.processes import alive, wait_until
from turnlog.events.errors import TurnlogError

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0
POLL_S = 0.1


class AlreadyUp(TurnlogError):
    """`turnlog up` runs already for this data folder."""

    code = "already-up"


def pid_path(settings: Settings) -> Path:
    return settings.home / "up.json"


def log_path(settings: Settings) -> Path:
    return settings.home / "turnlog.log"


def running_pid(settings: Settings) -> int | None:
    """The pid of this home's `up`; None for a file left by a crash, a reused pid or a zombie."""
    try:
        found = json.loads(pid_path(settings).read_text("utf-8"))
        process = psutil.Process(int(found["pid"]))
        is_it = abs(process.create_time() - float(found["created"])) < 1.0
        return process.pid if is_it and alive(process) else None
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None


def refuse_second(settings: Settings) -> None:
    """Raises AlreadyUp."""
    if (pid := running_pid(settings)) is not None and pid != os.getpid():
        raise AlreadyUp(f"turnlog is up already for {settings.home} (pid {pid}); `turnlog down` ends it")


@contextlib.contextmanager
def registered(settings: Settings) -> Iterator[None]:
    settings.home.mkdir(parents=True, exist_ok=True)
    created = psutil.Process().create_time()
    pid_path(settings).write_text(json.dumps({"pid": os.getpid(), "created": created}), "utf-8")
    try:
        yield
    finally:
        pid_path(settings).unlink(missing_ok=True)


async def start(settings: Settings) -> int:
    """Starts `up` detached from the terminal and waits until it is ready. Raises AlreadyUp, TurnlogError."""
    refuse_second(settings)
    settings.home.mkdir(parents=True, exist_ok=True)
    with log_path(settings).open("ab") as log:
        child = await asyncio.to_thread(_spawn, log)
    async with asyncio.timeout(START_TIMEOUT_S):
        while running_pid(settings) is None:
            if child.poll() is not None:
                raise TurnlogError(f"turnlog did not start: {_last_line(log_path(settings))}")
            await asyncio.sleep(POLL_S)
    return child.pid


async def stop(settings: Settings) -> int | None:
    """Ends this home's `up` with SIGTERM, then SIGKILL; returns its pid, None if none was running."""
    pid = running_pid(settings)
    if pid is None:
        return None
    process = psutil.Process(pid)
    process.send_signal(signal.SIGTERM)
    if not await wait_until(lambda: _is_gone(process), lambda: True, STOP_TIMEOUT_S):
        process.kill()
    return pid


async def _is_gone(process: psutil.Process) -> bool:
    """A zombie counts as gone: its parent may never collect the exit status, as often in a container."""
    return not alive(process)


def _spawn(log: IO[bytes]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "turnlog.consumers.cli", "up"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _last_line(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"see {path}"
