"""Data folders of embedded servers that begin with a migrated, empty database in place of initdb and migrations."""

import asyncio
import fcntl
import os
import subprocess
from pathlib import Path

from turnlog.consumers.servers import start, stop
from turnlog.migrations.upgrade import upgrade


async def make_prepared_home(base: Path) -> Path:
    """The home to copy from; whichever worker comes first makes it."""
    home, done = base / "prepared" / "home", base / "prepared" / "done"
    done.parent.mkdir(exist_ok=True)
    with (base / "prepared" / "lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        if not done.exists():
            servers = await start(home)
            await asyncio.to_thread(upgrade, servers.database_url)
            await stop(home)
            done.touch()
    return home


def copy_database(prepared: Path, home: Path) -> Path:
    """Gives `home`, which does not exist yet, the database; its servers find what a stop has left. Returns `home`."""
    (home / "postgres").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    subprocess.run(["cp", "-a", prepared / "postgres" / "data", home / "postgres"], check=True)
    return home


def shared_by_workers(own: Path) -> Path:
    """The temporary folder that all workers of this run have in common. own: that of this worker."""
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
