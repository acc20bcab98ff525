"""One Postgres in `<home>/postgres`: data/, postgresql.conf, postgres.log and, where the path is short, run/.

It listens on a Unix socket only, in a folder that nobody else can enter; that is the access control.
"""

import asyncio
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil

from turnlog.agent.embedded.binaries import POSTGRES_MAJOR, postgres_binaries, postgres_trees
from turnlog.agent.embedded.errors import ServerStartFailed
from turnlog.agent.embedded.files import write_private
from turnlog.agent.embedded.identity import Identity, hand_over, let_reach, let_run
from turnlog.agent.embedded.postgres_config import render
from turnlog.agent.embedded.postgres_database import SUPERUSER, is_ready, url_at
from turnlog.agent.embedded.postgres_socket import prepare_socket_folder, remove_socket_folder, socket_folder
from turnlog.agent.embedded.processes import Launched, alive, cmdline, end, launch, parent, running, wait_until

NAME = "postgres"
# Fast shutdown (clients are cut off, the state is written), then immediate (recovery at the next start).
STOP_STEPS = [(signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0)]


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """How the Postgres of one home is to run; `key` names the home."""

    folder: Path
    key: str
    identity: Identity | None
    timeout: float

    @property
    def data(self) -> Path:
        return self.folder / "data"

    async def start(self) -> tuple[str, bool]:
        """Starts or attaches. Returns (url, whether it was started). Raises ServerStartFailed, OSError."""
        self._check_version()
        if (url := await self.attach()) is not None:
            return url, False
        await self.stop()
        await self._prepare_folder()
        sockets = prepare_socket_folder(self.folder, self.key, self.identity)
        server = self._launch(sockets)
        if not await wait_until(lambda: is_ready(sockets), server.alive, self.timeout):
            raise server.failure("Postgres did not start")
        return url_at(sockets), True

    async def attach(self) -> str | None:
        """The URL of the running server, after its recovery if need be; None when none runs."""
        leader, sockets = self.leader(), self.known_sockets()
        if leader is None or sockets is None:
            return None
        if await wait_until(lambda: is_ready(sockets), lambda: alive(leader), self.timeout):
            return url_at(sockets)
        if alive(leader):
            raise ServerStartFailed(
                f"Postgres (process {leader.pid}) does not answer after {self.timeout:.0f} s; "
                f"see {self.folder / 'postgres.log'}, and `turnlog down` to stop it"
            )
        return None

    async def stop(self) -> None:
        """Ends the server and what a killed one left behind. Raises ServerStopFailed."""
        leader = self.leader()
        await end([leader] if leader else [], STOP_STEPS if leader else [], self._processes)
        # With no process of it left, these are stale; a pid in them may belong to somebody else by now.
        remove_socket_folder(self.known_sockets() or socket_folder(self.folder, self.key))
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def leader(self) -> psutil.Process | None:
        """The postmaster; its workers, which may outlive it for a moment, have a title for options."""
        processes = self._processes()
        pids = {process.pid for process in processes}
        ours = f"config_file={self.folder / 'postgresql.conf'}"
        return next((p for p in processes if ours in cmdline(p) and parent(p) not in pids), None)

    def known_sockets(self) -> Path | None:
        """The socket folder that the (last) server wrote into postmaster.pid, its fifth line."""
        pid_file = self.data / "postmaster.pid"
        lines = pid_file.read_text().splitlines() if pid_file.is_file() else []
        return Path(lines[4]) if len(lines) > 4 and lines[4] else None

    def _processes(self) -> list[psutil.Process]:
        """The server's, and those of an initdb that outlived its command."""
        return running(self.folder, NAME, "initdb")

    def _check_version(self) -> None:
        version_file = self.data / "PG_VERSION"
        version = version_file.read_text().strip() if version_file.is_file() else str(POSTGRES_MAJOR)
        if version != str(POSTGRES_MAJOR):
            raise ServerStartFailed(
                f"{self.data} was written by PostgreSQL {version}, this turnlog runs {POSTGRES_MAJOR}. "
                "Move the folder away and run `turnlog rebuild --all` (every row comes back from the log), "
                "or use pg_upgrade."
            )

    async def _prepare_folder(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        hand_over(self.folder, self.identity)
        let_reach(self.folder, self.identity)
        for tree in postgres_trees():
            let_run(tree, self.identity)
        if not self.data.exists():
            await self._initdb()

    async def _initdb(self) -> None:
        """Makes the data folder under another name first: a killed initdb leaves no half of one."""
        draft = self.folder / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        # fmt: off
        argv: list[str | Path] = [
            postgres_binaries() / "initdb", "-D", draft, "-U", SUPERUSER, "--encoding=UTF8",
            # The same order of strings on every machine, whatever its C library.
            "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
            "--auth-local=trust", "--auth-host=reject", "--no-instructions",
        ]
        # fmt: on
        server = launch(argv, self.folder, self.folder / "postgres.log", self.identity)
        try:
            code = await asyncio.to_thread(server.process.wait)
        except asyncio.CancelledError:
            server.process.kill()
            raise
        if code != 0:
            raise server.failure("initdb failed")
        draft.rename(self.data)

    def _launch(self, sockets: Path) -> Launched:
        conf = self.folder / "postgresql.conf"
        write_private(conf, render(sockets), self.identity)
        log = self.folder / "postgres.log"
        if log.exists() and log.stat().st_size > 16 * 1024 * 1024:
            log.replace(log.with_suffix(".log.1"))
        argv: list[str | Path] = [
            postgres_binaries() / "postgres",
            "-D",
            self.data,
            "-c",
            f"config_file={conf}",
        ]
        return launch(argv, self.folder, log, self.identity)
