"""Creates turnlog's folders and files so that only their owner may read them."""

import contextlib
import logging
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger("turnlog.files")
# Rights to a folder that other users must not have. They may search it (x), because Postgres and nats-server run as
# another user if root starts them.
OTHERS = 0o066


def private_folder(path: Path) -> Path:
    """Creates the folder, or removes other users' access to an existing folder; returns its path. Raises OSError."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        _give_to_owner_of(path.parent, path)
    mode = path.stat().st_mode
    if mode & OTHERS:
        _close(path, mode)
    return path


def _close(folder: Path, mode: int) -> None:
    try:
        if mode & stat.S_ISVTX:
            raise PermissionError("it is shared by all users")
        folder.chmod(0o700)
    except PermissionError as error:
        reason = error.strerror or error
        logger.warning("other users can read %s, and this user cannot change that: %s; chmod 700 it", folder, reason)


def open_private(path: Path, flags: int) -> int:
    """Opens a file like os.open; the file belongs to the owner of its folder, and only the owner may read it. Raises
    OSError."""
    file = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_mode & 0o077:
            os.fchmod(file, 0o600)
        _give_to_owner_of(path.parent, file)
    except BaseException:
        os.close(file)
        raise
    return file


def close_files(folder: Path) -> None:
    """Removes other users' access to the files in a folder, such as logs of an earlier version. A warning names each
    file that this user cannot change."""
    for file in folder.iterdir() if folder.is_dir() else ():
        mode = file.lstat().st_mode
        if stat.S_ISREG(mode) and mode & 0o077:
            try:
                file.chmod(0o600)
            except FileNotFoundError:  # it was another process's temporary file
                continue
            except PermissionError:
                logger.warning("other users can read %s, and this user cannot change that; chmod 600 it", file)


def made_once(path: Path, make: Callable[[], str]) -> str:
    """Returns the line in the file. If the file does not exist, it is created with the result of `make`; of several
    processes, the first that links its file wins. Raises OSError."""
    if not path.exists():
        private_folder(path.parent)
        mine = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        _write(mine, make())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(mine, path)
        finally:
            mine.unlink()
        _sync_folder(path.parent)
    return path.read_text("ascii", "replace").strip()


def _write(path: Path, text: str) -> None:
    file = open_private(path, os.O_WRONLY | os.O_EXCL)
    try:
        os.write(file, text.encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def _sync_folder(folder: Path) -> None:
    """Syncs the folder, because a power failure must not lose the file while servers keep data that depends on it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _give_to_owner_of(folder: Path, made: Path | int) -> None:
    """Gives a file that root created in a user's folder to that user."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(made, owner.st_uid, owner.st_gid)
