"""The user that the servers run as. Postgres refuses to run as root, so root starts the servers as another user.

An ordinary user starts them under their own account. Root starts them as the owner of the data folder if that is an
ordinary user (who can then continue without root), else as the system user `_turnlog`, created on first use.
"""

import os
import pwd
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from turnlog.consumers.servers.errors import ServerStartFailed

_ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_SEARCH = 1

Entries = dict[tuple[int, int], int]


def allow_search(folder: Path, uid: int) -> None:
    """Lets `uid` traverse `folder`; everybody (o+x) if the file system has no access lists."""
    try:
        entries = with_search(_entries(folder), uid)
        os.setxattr(folder, _ATTRIBUTE, _encode(entries))
    except (OSError, AttributeError):
        folder.chmod(folder.stat().st_mode | 0o001)


def with_search(entries: Entries, uid: int) -> Entries:
    """Returns `entries` plus search for `uid`; the mask is widened so that the entry takes effect."""
    group = entries.get((_GROUP, _NO_ID), 0)
    mask = entries.get((_MASK, _NO_ID), group)
    added = {(_USER, uid): entries.get((_USER, uid), 0) | _SEARCH, (_MASK, _NO_ID): mask | _SEARCH}
    return {**entries, **added}


def _entries(folder: Path) -> Entries:
    try:
        raw = os.getxattr(folder, _ATTRIBUTE)[len(_VERSION) :]
    except OSError:
        mode = folder.stat().st_mode
        return {
            (_OWNER, _NO_ID): mode >> 6 & 7,
            (_GROUP, _NO_ID): mode >> 3 & 7,
            (_OTHER, _NO_ID): mode & 7,
        }
    return {(tag, uid): permissions for tag, permissions, uid in _ENTRY.iter_unpack(raw)}


def _encode(entries: Entries) -> bytes:
    """Encodes the entries, sorted by tag and id as the kernel requires."""
    return _VERSION + b"".join(_ENTRY.pack(tag, entries[tag, uid], uid) for tag, uid in sorted(entries))


SERVICE_USER = "_turnlog"


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and group that a server runs as."""

    uid: int
    gid: int


def server_identity(home: Path) -> Identity | None:
    """The identity to switch to; None to keep the current user. Raises ServerStartFailed."""
    if os.geteuid() != 0:
        return None
    owner = home.stat()
    # initdb needs a user name; a bind-mounted folder may belong to a uid without one.
    if owner.st_uid != 0 and _known(owner.st_uid):
        return Identity(owner.st_uid, owner.st_gid)
    return _service_user()


def _known(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def _service_user() -> Identity:
    """`_turnlog`, created if missing; `nobody` if no user can be created (read-only /etc)."""
    for attempt in (_find(SERVICE_USER), _make(SERVICE_USER), _find("nobody")):
        if attempt is not None:
            return attempt
    raise ServerStartFailed(
        "Postgres cannot run as root and no other user could be made: "
        f"run turnlog as an ordinary user, or `useradd --system {SERVICE_USER}`, or set DATABASE_URL"
    )


def _find(name: str) -> Identity | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Identity(entry.pw_uid, entry.pw_gid)


def _make(name: str) -> Identity | None:
    if (useradd := shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin")) is None:
        return None
    options = [
        "--system",
        "--user-group",
        "--no-create-home",
        "--home-dir",
        "/nonexistent",
        "--shell",
        "/bin/false",
    ]
    # A failure is ignored: another command may have created the user at the same time.
    subprocess.run([useradd, *options, name], capture_output=True, check=False)
    return _find(name)


def hand_over(folder: Path, identity: Identity | None) -> None:
    """Makes `folder` and all in it belong to `identity`; cheap when it already does."""
    if identity is None or folder.stat().st_uid == identity.uid:
        return
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            os.chown(Path(parent) / name, identity.uid, identity.gid, follow_symlinks=False)
    # The top last, so that an interrupted walk is repeated.
    os.chown(folder, identity.uid, identity.gid)


def let_reach(path: Path, identity: Identity | None) -> None:
    """Lets `identity`, and no other user, traverse the parents of `path` (/root is closed to others)."""
    if identity is None:
        return
    for folder in path.resolve().parents:
        if not _may_search(folder, identity):
            allow_search(folder, identity.uid)


def let_run(tree: Path, identity: Identity | None) -> None:
    """Lets `identity` run the programs in a wheel's `tree`, which pip makes private under a strict umask."""
    if identity is None:
        return
    let_reach(tree, identity)
    if tree.stat().st_mode & 0o005 == 0o005:
        return
    for path in [*tree.rglob("*"), tree]:
        mode = path.stat().st_mode
        path.chmod(mode | (0o005 if mode & 0o100 else 0o004))


def _may_search(folder: Path, identity: Identity) -> bool:
    stat = folder.stat()
    if stat.st_uid == identity.uid:
        return bool(stat.st_mode & 0o100)
    return bool(stat.st_mode & (0o010 if stat.st_gid == identity.gid else 0o001))
