"""Chooses the user that the servers run as. Postgres refuses to run as root, so root starts the servers as another
user.

An ordinary user starts them under their own account. Root starts them as the owner of the data folder if the owner is
an ordinary user (who can then continue without root), else as the system user `_turnlog`, which is created on first
use.
"""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from turnlog.consumers.servers.errors import ServerStartFailed

SERVICE_USER = "_turnlog"


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and group that a server runs as."""

    uid: int
    gid: int


def server_identity(home: Path) -> Identity | None:
    """Returns the identity to run the servers as; None keeps the current user. Raises ServerStartFailed."""
    if os.geteuid() != 0:
        return None
    owner = home.stat()
    # initdb needs a user name; a bind-mounted folder may belong to a uid without one.
    if owner.st_uid != 0 and _known(owner.st_uid):
        return Identity(owner.st_uid, owner.st_gid)
    # Uses `nobody` if no user can be created, for instance because /etc is read-only.
    for attempt in (_find(SERVICE_USER), _make(SERVICE_USER), _find("nobody")):
        if attempt is not None:
            return attempt
    raise ServerStartFailed(
        "Postgres cannot run as root, and no other user could be created: "
        f"run turnlog as an ordinary user, or `useradd --system {SERVICE_USER}`, or set DATABASE_URL"
    )


def _known(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


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
    # Ignores a failure, because another command may have created the user at the same time.
    subprocess.run([useradd, *options, name], capture_output=True, check=False)
    return _find(name)


def hand_over(folder: Path, identity: Identity | None) -> None:
    """Changes the owner of `folder` and everything in it to `identity`, unless `folder` already belongs to it."""
    if identity is None or folder.stat().st_uid == identity.uid:
        return
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            os.chown(Path(parent) / name, identity.uid, identity.gid, follow_symlinks=False)
    # The folder itself comes last, so that an interrupted walk is repeated.
    os.chown(folder, identity.uid, identity.gid)


def let_reach(path: Path, identity: Identity | None) -> None:
    """Lets `identity` traverse the parents of `path`, such as /root, which others cannot enter.

    A folder that its group cannot enter gets the group of `identity`, so that nobody else may enter. A folder whose
    group has rights gets the search right for all users.
    """
    if identity is None or _may_search(path.resolve().parent, identity):
        return
    for folder in reversed(path.resolve().parents):
        if not _may_search(folder, identity):
            mode = folder.stat().st_mode
            if not mode & 0o070:
                os.chown(folder, -1, identity.gid)
            folder.chmod(mode | (0o001 if mode & 0o070 else 0o010))


def let_run(tree: Path, identity: Identity | None) -> None:
    """Lets `identity` run the programs in a wheel's folder `tree`, which pip makes private under a strict umask."""
    if identity is None:
        return
    let_reach(tree, identity)
    if tree.stat().st_mode & 0o005 == 0o005:
        return
    for path in [*tree.rglob("*"), tree]:
        mode = path.stat().st_mode
        path.chmod(mode | (0o005 if mode & 0o100 else 0o004))


def _may_search(folder: Path, identity: Identity) -> bool:
    """Returns whether `identity` may enter the folder. It asks the kernel as that user, because an access list may
    grant the right."""
    argv = ["/bin/sh", "-c", 'test -x "$0"', str(folder)]
    return subprocess.run(argv, user=identity.uid, group=identity.gid, extra_groups=[], cwd="/").returncode == 0
