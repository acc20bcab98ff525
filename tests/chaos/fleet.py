"""Runs the embedded servers and worker processes of one home, kills them with SIGKILL and restarts them."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import IO

import psutil

from turnlog.consumers import servers as embedded
from turnlog.consumers.servers.processes import alive, cmdline, wait_until

from .schedule import PART_OF, WORKERS, Kill

READY_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 40.0
# These variables are removed from the caller's environment, so that the offline models are used.
_FOREIGN = ("API_", "OPENAI_", "MEMORY_", "TURNLOG_", "NATS_URL", "DATABASE_URL")


class Fleet:
    """The servers and workers of one home. `start` creates a fleet, `stop` ends it."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home, self._rng = home, random.Random(seed + 2)
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._log_start: dict[str, int] = {}
        self._revivals: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self.down: set[str] = set()
        self.killed: Counter[str] = Counter()
        self.deserters: list[str] = []
        self.where = embedded.Servers("", "", ())

    async def start(self) -> None:
        self.where = await embedded.start(self.home)
        await embedded.keep(self.home)  # otherwise the end of the last worker would stop them

    def start_workers(self) -> None:
        for name in WORKERS:
            self._launch(name)
        self._watch = asyncio.create_task(self._restart_those_who_left())

    async def kill(self, kill: Kill, back: asyncio.Task[None]) -> None:
        """Kills the target with SIGKILL and starts it again after `back`. If the target is down, first waits until it
        runs again."""
        for name in {kill.target, PART_OF.get(kill.target, kill.target)}:
            if earlier := self._revivals.pop(name, None):
                await earlier
        self.down.add(kill.target)
        await self._kill(kill.target)
        self.killed[kill.target] += 1
        self._revivals[kill.target] = asyncio.create_task(self._revive(kill.target, back))

    async def all_back(self) -> None:
        """Waits until everything that was killed runs again and is ready."""
        await self.all_revived()
        ready = [wait_until(partial(self._is_ready, name), lambda: True, READY_TIMEOUT_S) for name in WORKERS]
        assert all(await asyncio.gather(*ready)), "a worker did not get ready"

    async def all_revived(self) -> None:
        """Waits until everything that was killed has been started again."""
        await asyncio.gather(*self._revivals.values())

    async def outage(self, seconds: float) -> None:
        """Kills both servers and restarts them after this time."""
        for server in ("nats", "postgres"):
            await self._kill(server)
            self.killed[server] += 1
        await asyncio.sleep(seconds)
        await embedded.start(self.home)

    async def stop_workers(self, *names: str) -> list[str]:
        """Stops workers with SIGTERM, as an operator would; returns complaints about workers that did not end
        cleanly."""
        if self._watch is not None:
            self._watch.cancel()
        chosen = {name: self._workers.pop(name) for name in names or tuple(self._workers)}
        for process in chosen.values():
            process.send_signal(signal.SIGTERM)
        return [f"{name} ended with {code}" for name, process in chosen.items() if (code := await _ended(process)) != 0]

    async def stop(self) -> None:
        """Ends all workers and servers, regardless of their state."""
        for task in (self._watch, *self._revivals.values()):
            if task is not None:
                task.cancel()
        for process in self._workers.values():
            process.kill()
            await asyncio.to_thread(process.wait)
        await embedded.stop(self.home)

    async def _kill(self, target: str) -> None:
        if target in WORKERS:
            self._workers[target].kill()
            await asyncio.to_thread(self._workers[target].wait)
            return
        status = embedded.status(self.home)
        server = status.nats if target == "nats" else status.postgres
        assert server is not None, f"{target} does not run"
        victim = psutil.Process(server.pid)
        if target == "postgres-backend":
            victim = self._kill_backend(victim)
        else:
            victim.kill()
        await wait_until(lambda: _gone(victim), lambda: True, 10.0)

    def _kill_backend(self, postmaster: psutil.Process) -> psutil.Process:
        """Kills a backend and returns it. It tries again if the chosen backend has just ended by itself."""
        while True:
            victim = self._rng.choice(_backends(postmaster))
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
                return victim

    async def _revive(self, target: str, back: asyncio.Task[None]) -> None:
        await back
        if target in WORKERS:
            self._launch(target)
        else:
            await embedded.start(self.home)
        self.down.discard(target)

    def _launch(self, name: str) -> None:
        with self._log(name) as log:
            self._log_start[name] = log.tell()
            self._workers[name] = subprocess.Popen(
                [sys.executable, "-m", "turnlog.consumers.cli", "worker", *WORKERS[name]],
                env=self._environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _is_ready(self, name: str) -> bool:
        """Returns whether the worker has printed that its last start is complete."""
        log = (self.home / f"{name}.log").read_bytes()[self._log_start[name] :]
        return f"worker {WORKERS[name][0]} runs".encode() in log

    def _last_words(self, name: str) -> str:
        lines = (self.home / f"{name}.log").read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _log(self, name: str) -> IO[bytes]:
        return (self.home / f"{name}.log").open("ab")

    def _environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        return own | {
            "TURNLOG_HOME": str(self.home),
            "NATS_URL": self.where.nats_url,
            "DATABASE_URL": self.where.database_url,
            "TURNLOG_LOG_LEVEL": "INFO",
            "TURNLOG_PLAINTEXT": "yes",
        }

    async def _restart_those_who_left(self) -> None:
        """Restarts workers that have ended by themselves and records this, because a worker must not end when its
        servers are unavailable."""
        while True:
            await asyncio.sleep(0.5)
            for name, process in list(self._workers.items()):
                if name not in self.down and (code := process.poll()) is not None:
                    self.deserters.append(f"{name} left by itself with {code}: {self._last_words(name)}")
                    self._launch(name)


def _backends(postmaster: psutil.Process) -> list[psutil.Process]:
    """Returns Postgres's child processes, client connections first; their titles begin with `postgres: user
    database`."""
    children = postmaster.children()
    clients = [child for child in children if "turnlog turnlog" in " ".join(cmdline(child))]
    return clients or children


async def _gone(process: psutil.Process) -> bool:
    return not alive(process)


async def _ended(process: "subprocess.Popen[bytes]") -> int:
    try:
        return await asyncio.to_thread(process.wait, STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return await asyncio.to_thread(process.wait)
