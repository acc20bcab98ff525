"""Runs one Postgres in `<home>/postgres`, with data/, postgresql.conf, postgres.log and, if the path is short, run/.

Postgres listens only on a Unix socket in a folder that other users cannot open; this is the access control.
"""

import asyncio
import os
import shutil
import signal
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from turnlog.consumers.servers.binaries import POSTGRES_MAJOR, postgres_binaries, postgres_trees
from turnlog.consumers.servers.errors import ServerStartFailed
from turnlog.consumers.servers.home import write_private
from turnlog.consumers.servers.processes import Launched, alive, cmdline, end, launch, parent, running, wait_until
from turnlog.consumers.servers.server_user import Identity, hand_over, let_reach, let_run

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (only its size is read)
ENOUGH_SHARED_MEMORY = 1024 * 1024 * 1024
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # bytes, or "max"
LEAST_BUFFERS_MB, MOST_BUFFERS_MB = 128, 1024

SETTINGS: dict[str, str | int] = {
    "listen_addresses": "",
    "port": 5432,
    "unix_socket_permissions": "0700",
    "max_connections": 100,
    "maintenance_work_mem": "256MB",
    "max_wal_size": "2GB",
    "fsync": "on",
    "synchronous_commit": "on",
    "jit": "off",
    # For solid state disks; the default of 4 keeps the planner from using indexes.
    "random_page_cost": "1.1",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}


def render(socket_folder: Path) -> str:
    """Returns the text of postgresql.conf for a server that listens only on a socket in `socket_folder`."""
    settings = {
        **SETTINGS,
        "shared_buffers": f"{buffers_mb(memory())}MB",
        "unix_socket_directories": str(socket_folder),
        "dynamic_shared_memory_type": "posix" if _roomy_shared_memory() else "mmap",
    }
    return "".join(f"{name} = {_quoted(str(value))}\n" for name, value in settings.items())


def memory(container_limit: Path = CONTAINER_LIMIT) -> int:
    """Returns the memory of this machine or container in bytes."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(container_limit.read_text()))
    except (OSError, ValueError):
        return total


def buffers_mb(memory_bytes: int) -> int:
    """Returns the size of Postgres' shared buffers in MB: a quarter of the memory, as Postgres' manual advises, but at
    least LEAST_BUFFERS_MB, and not more than recall over 200,000 chunks needs."""
    return min(max(memory_bytes // 4 // 2**20, LEAST_BUFFERS_MB), MOST_BUFFERS_MB)


def _roomy_shared_memory() -> bool:
    """Returns whether shared memory is large enough. Containers often have 64 MB, which a parallel index build
    exceeds."""
    return not SHARED_MEMORY.is_dir() or shutil.disk_usage(SHARED_MEMORY).total >= ENOUGH_SHARED_MEMORY


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


SUPERUSER = "turnlog"
DATABASE = "turnlog"
PORT = 5432


def url_at(sockets: Path) -> str:
    """Returns the URL for psycopg and SQLAlchemy. The URL names the port, so that the caller's PGPORT has no effect."""
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(sockets), safe='')}&port={PORT}"


async def is_ready(sockets: Path) -> bool:
    """Returns whether the server accepts statements; creates the database if it is missing."""
    try:
        async with await _connect(sockets, "postgres") as connection:
            rows = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
            if await rows.fetchone() is None:
                # Creates the extension in the template first, so that a crash cannot leave a database without it.
                async with await _connect(sockets, "template1") as template:
                    await template.execute("CREATE EXTENSION IF NOT EXISTS vector")
                await connection.execute(f"CREATE DATABASE {DATABASE}")
    except psycopg.OperationalError:
        return False
    return True


async def _connect(sockets: Path, database: str) -> "psycopg.AsyncConnection[tuple[object, ...]]":
    return await psycopg.AsyncConnection.connect(
        host=str(sockets), port=PORT, user=SUPERUSER, dbname=database, autocommit=True, connect_timeout=5
    )


LONGEST_PATH = 100
_NAME = f".s.PGSQL.{PORT}"


def socket_folder(folder: Path, key: str) -> Path:
    """Returns `<folder>/run`, or a short folder for this home (`key`) if that path is too long."""
    inside = folder / "run"
    if len(os.fsencode(inside / _NAME)) <= LONGEST_PATH:
        return inside
    short = Path(tempfile.gettempdir()) / f"turnlog-{key}"
    if len(os.fsencode(short / _NAME)) <= LONGEST_PATH:
        return short
    return Path("/tmp") / short.name  # noqa: S108  (prepare_socket_folder checks its owner and mode)


def prepare_socket_folder(folder: Path, key: str, identity: Identity | None) -> Path:
    """Creates the socket folder, closed to other users. Raises ServerStartFailed if another user owns it."""
    sockets = socket_folder(folder, key)
    sockets.mkdir(mode=0o700, exist_ok=True)
    if identity is not None and sockets.lstat().st_uid == 0:
        os.chown(sockets, identity.uid, identity.gid, follow_symlinks=False)
    status = sockets.lstat()
    owner = identity.uid if identity else os.geteuid()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner or status.st_mode & 0o077:
        raise ServerStartFailed(f"{sockets} belongs to another user or is open to others; remove it and try again")
    remove_socket(sockets)
    return sockets


def remove_socket(sockets: Path) -> None:
    """Removes the socket and lock of a server that has ended."""
    for name in (_NAME, f"{_NAME}.lock"):
        (sockets / name).unlink(missing_ok=True)


def remove_socket_folder(sockets: Path) -> None:
    """Removes the socket and its folder, so that stopped homes do not fill the temp folder; other users' folders
    stay."""
    with suppress(OSError):
        remove_socket(sockets)
        sockets.rmdir()


NAME = "postgres"
# A fast shutdown (disconnects clients, writes the state), then an immediate one (needs recovery at the next start).
STOP_STEPS = [(signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0)]
MOST_LOG_BYTES = 16 * 1024 * 1024  # a longer log is renamed at the next start


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """The Postgres of one home, which can be started and stopped. key: the short unique name of the home."""

    folder: Path
    key: str
    identity: Identity | None
    timeout: float

    @property
    def data(self) -> Path:
        return self.folder / "data"

    async def start(self) -> tuple[str, bool]:
        """Starts Postgres or attaches to it. Returns (url, whether it was started). Raises ServerStartFailed,
        OSError."""
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
        """Returns the URL of the running server, after waiting for its recovery; None if no server runs. Raises
        ServerStartFailed."""
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
        """Ends the server and the remaining processes of a killed server. Raises ServerStopFailed."""
        leader = self.leader()
        await end([leader] if leader else [], STOP_STEPS if leader else [], self._processes)
        # Without a process these files are stale; their pid may belong to another process by now.
        remove_socket_folder(self.known_sockets() or socket_folder(self.folder, self.key))
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def leader(self) -> psutil.Process | None:
        """Returns the postmaster, or None. Its workers, which may outlive it briefly, have a title instead of
        options."""
        processes = self._processes()
        pids = {process.pid for process in processes}
        ours = f"config_file={self.folder / 'postgresql.conf'}"
        return next((p for p in processes if ours in cmdline(p) and parent(p) not in pids), None)

    def known_sockets(self) -> Path | None:
        """Returns the socket folder in the fifth line of the last server's postmaster.pid."""
        pid_file = self.data / "postmaster.pid"
        lines = pid_file.read_text().splitlines() if pid_file.is_file() else []
        return Path(lines[4]) if len(lines) > 4 and lines[4] else None

    def _processes(self) -> list[psutil.Process]:
        """Returns the processes of the server and of an initdb that outlived its command."""
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
        """Creates the data folder under a temporary name first, so that a killed initdb leaves no partial data
        folder."""
        draft = self.folder / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        # fmt: off
        argv: list[str | Path] = [
            postgres_binaries() / "initdb", "-D", draft, "-U", SUPERUSER, "--encoding=UTF8",
            # Sorts strings the same way on every machine, independent of its C library.
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
        if log.exists() and log.stat().st_size > MOST_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        argv: list[str | Path] = [
            postgres_binaries() / "postgres",
            "-D",
            self.data,
            "-c",
            f"config_file={conf}",
        ]
        return launch(argv, self.folder, log, self.identity)
