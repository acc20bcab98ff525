"""Prepares data folders of embedded servers with a migrated, empty database, which saves initdb and migrations."""

import asyncio
import fcntl
import os
import subprocess
from pathlib import Path

from turnlog.consumers.servers import start, stop
from turnlog.migrations.upgrade import upgrade


async def make_prepared_home(base: Path) -> Path:
    """Returns the home to copy from; the first worker creates it."""
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
    """Copies the stopped database into `home`, which must not exist yet, and returns `home`."""
    (home / "postgres").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    subprocess.run(["cp", "-a", prepared / "postgres" / "data", home / "postgres"], check=True)
    return home


def shared_by_workers(own: Path) -> Path:
    """Returns the temporary folder that all workers of this run share. own: the temporary folder of this worker."""
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
