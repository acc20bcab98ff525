"""The data folder: where things are, one command at a time in it, and who still needs the servers."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from turnlog.agent.embedded.errors import ServerStartFailed, folder_errors

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
        """Exists from an explicit `up` to the next `down`: the last lease out does not stop the servers."""
        return self.path / "keep"

    @property
    def key(self) -> str:
        """A short name for this home, unlike any other home's."""
        return sha256(os.fsencode(self.path)).hexdigest()[:12]


def home_at(path: Path) -> Home:
    """The home at `path`, which need not exist yet."""
    return Home(path.expanduser().resolve())


@asynccontextmanager
async def locked(home: Home) -> AsyncIterator[None]:
    """One command at a time; the kernel frees the lock of a killed one. Raises ServerStartFailed."""
    with folder_errors(home.path):
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _open(home.path / "lock")
    try:
        deadline = asyncio.get_running_loop().time() + LOCK_TIMEOUT_S
        while not _try_lock(lock, fcntl.LOCK_EX):
            if asyncio.get_running_loop().time() > deadline:
                raise ServerStartFailed(f"another command has been starting or stopping in {home.path} for too long")
            await asyncio.sleep(0.05)
        yield
    finally:
        os.close(lock)


def hold_lease(home: Home) -> int:
    """Takes a share of the servers; closing the returned descriptor gives it back. Call it inside `locked`.

    A shared lock of the kernel: a killed holder's share is gone at once, whatever happens to pids and clocks.
    (A child that was forked without exec shares it.)
    """
    share = _open(home.path / "lease")
    fcntl.flock(share, fcntl.LOCK_SH)
    return share


def is_leased(home: Home) -> bool:
    """Whether any living process holds a share. Call it inside `locked`."""
    if not (home.path / "lease").exists():
        return False
    lease = _open(home.path / "lease")
    try:
        return not _try_lock(lease, fcntl.LOCK_EX)
    finally:
        os.close(lease)


def _open(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.geteuid() == 0:
        # What root leaves in a user's folder must not lock the user out of it.
        owner = path.parent.stat()
        os.fchown(lock, owner.st_uid, owner.st_gid)
    return lock


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
