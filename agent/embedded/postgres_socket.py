"""Where the Unix socket of Postgres is: in the home, or, as its path must be short, in the temp folder."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from turnlog.agent.embedded.errors import ServerStartFailed
from turnlog.agent.embedded.identity import Identity
from turnlog.agent.embedded.postgres_database import PORT

LONGEST_PATH = 100
_NAME = f".s.PGSQL.{PORT}"


def socket_folder(folder: Path, key: str) -> Path:
    """`<folder>/run`, or a short folder of this home's own (`key`) where that is too long."""
    inside = folder / "run"
    if len(os.fsencode(inside / _NAME)) <= LONGEST_PATH:
        return inside
    short = Path(tempfile.gettempdir()) / f"turnlog-{key}"
    if len(os.fsencode(short / _NAME)) <= LONGEST_PATH:
        return short
    return Path("/tmp") / short.name  # noqa: S108  (its owner and mode are checked below)


def prepare_socket_folder(folder: Path, key: str, identity: Identity | None) -> Path:
    """Makes the socket folder, closed to everybody else. Raises ServerStartFailed when it is somebody's."""
    sockets = socket_folder(folder, key)
    sockets.mkdir(mode=0o700, exist_ok=True)
    if identity is not None and sockets.lstat().st_uid == 0:
        os.chown(sockets, identity.uid, identity.gid, follow_symlinks=False)
    found = sockets.lstat()
    owner = identity.uid if identity else os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
        raise ServerStartFailed(f"{sockets} belongs to somebody else or is open to others; remove it and try again")
    remove_socket(sockets)
    return sockets


def remove_socket(sockets: Path) -> None:
    """Removes a socket and its lock that no server uses any more."""
    for name in (_NAME, f"{_NAME}.lock"):
        (sockets / name).unlink(missing_ok=True)


def remove_socket_folder(sockets: Path) -> None:
    """Removes the folder too, lest stopped homes fill the temp folder; what is not ours stays."""
    with suppress(OSError):
        remove_socket(sockets)
        sockets.rmdir()
