"""Manages the data folder: its paths, a lock that lets one command run at a time, and leases on the servers."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from turnlog.agent.private_files import open_private, private_folder
from turnlog.consumers.servers.errors import ServerStartFailed, folder_errors
from turnlog.consumers.servers.server_user import Identity


def write_private(path: Path, text: str, identity: Identity | None) -> None:
    """Writes `path` atomically, so that only `identity` can read it. Raises OSError."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if identity is not None:
        os.chown(draft, identity.uid, identity.gid)
    draft.replace(path)


LOCK_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Home:
    """A data folder by its real path, so that a symlink to it is the same home."""

    path: Path

    @property
    def nats(self) -> Path:
        return self.path / "nats"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def keep_flag(self) -> Path:
        """Returns the path of a file that exists between `up` and `down`; while it exists, the end of the last lease
        does not stop the servers."""
        return self.path / "keep"

    @property
    def key(self) -> str:
        """Returns a short unique name for this home."""
        return sha256(os.fsencode(self.path)).hexdigest()[:12]


def home_at(path: Path) -> Home:
    """Returns the home at `path`, which need not exist yet."""
    return Home(path.expanduser().resolve())


@asynccontextmanager
async def locked(home: Home) -> AsyncIterator[None]:
    """Lets one command run at a time; the kernel releases the lock of a killed command. Raises ServerStartFailed."""
    with folder_errors(home.path):
        lock = open_private(private_folder(home.path) / "lock", os.O_RDWR)
    try:
        deadline = asyncio.get_running_loop().time() + LOCK_TIMEOUT_S
        while not try_lock(lock):
            if asyncio.get_running_loop().time() > deadline:
                raise ServerStartFailed(f"another command has been starting or stopping in {home.path} for too long")
            await asyncio.sleep(0.05)
        yield
    finally:
        os.close(lock)


def hold_lease(home: Home) -> int:
    """Takes a lease on the servers; closing the returned descriptor ends the lease. Must be called inside `locked`.

    The lease is a shared kernel lock, so the lease of a killed process ends at once, independent of pids and clocks. (A
    child that is forked without exec shares the lease.)
    """
    share = open_private(home.path / "lease", os.O_RDWR)
    fcntl.flock(share, fcntl.LOCK_SH)
    return share


def is_leased(home: Home) -> bool:
    """Returns whether any process holds a lease. Must be called inside `locked`."""
    if not (home.path / "lease").exists():
        return False
    lease = open_private(home.path / "lease", os.O_RDWR)
    try:
        return not try_lock(lease)
    finally:
        os.close(lease)


def try_lock(file: int) -> bool:
    """Takes the exclusive lock; returns False if another process holds it. The kernel releases a killed process's
    lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
