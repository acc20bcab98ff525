"""As whom the servers run. Postgres refuses to run as root, so root hands the servers to somebody else.

An ordinary user runs them as himself. Root runs them as the owner of the data folder when that is an ordinary
user (who can then go on without root), else as the system user `_turnlog`, which is made on first use.
"""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from turnlog.agent.embedded.acl import allow_search
from turnlog.agent.embedded.errors import ServerStartFailed

SERVICE_USER = "_turnlog"


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and group that a server runs as."""

    uid: int
    gid: int


def server_identity(home: Path) -> Identity | None:
    """The identity to switch to, or None to stay who we are. Raises ServerStartFailed."""
    if os.geteuid() != 0:
        return None
    owner = home.stat()
    # initdb needs a name for its user; a bind-mounted folder may belong to a number without one.
    if owner.st_uid != 0 and _known(owner.st_uid):
        return Identity(owner.st_uid, owner.st_gid)
    return _service_user()


def _known(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def _service_user() -> Identity:
    """`_turnlog`, made when missing; where no user can be made (read-only /etc), `nobody`."""
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
    # A failure is no end: another command may have made the user at the same time.
    subprocess.run([useradd, *options, name], capture_output=True, check=False)
    return _find(name)


def hand_over(folder: Path, identity: Identity | None) -> None:
    """Makes `folder` and all in it belong to `identity`; cheap when it already does."""
    if identity is None or folder.stat().st_uid == identity.uid:
        return
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            os.chown(Path(parent) / name, identity.uid, identity.gid, follow_symlinks=False)
    # The top last: an interrupted walk is then done again.
    os.chown(folder, identity.uid, identity.gid)


def let_reach(path: Path, identity: Identity | None) -> None:
    """Lets `identity`, and nobody else, walk through the parents of `path` (/root is closed to others)."""
    if identity is None:
        return
    for folder in path.resolve().parents:
        if not _may_search(folder, identity):
            allow_search(folder, identity.uid)


def let_run(tree: Path, identity: Identity | None) -> None:
    """Lets `identity` run the programs in `tree`, a wheel's; closed when pip ran under a strict umask."""
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
