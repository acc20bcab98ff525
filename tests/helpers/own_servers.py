"""Runs separate servers for one test, which can kill and restart them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.key_rings import KEK
from helpers.preloaded_cli import Ended, run_command
from helpers.servers import processes_left_in
from pydantic import SecretStr

from turnlog.agent.settings import Settings
from turnlog.consumers.servers import Servers, start, status, stop
from turnlog.consumers.servers.processes import running, wait_until

PROCESSES = {"nats": "nats-server", "postgres": "postgres"}


@dataclass(frozen=True, slots=True)
class OwnServers:
    """A NATS and a Postgres under `home` whose addresses stay the same after a kill."""

    home: Path
    where: Servers

    @property
    def foreign(self) -> tuple[str, str]:
        """Returns other spellings of both addresses, which turnlog takes for foreign servers that it neither restarts
        nor stops."""
        return self.where.nats_url.replace(
            "@127.0.0.1:", "@localhost:"
        ), f"{self.where.database_url}&connect_timeout=60"

    def settings(self, **more: Any) -> Settings:
        where = dict(zip(("nats_url", "database_url"), self.foreign, strict=True))
        defaults = {"home": self.home, "kek": SecretStr(KEK), **where}
        return Settings(**{**defaults, **more})

    async def kill(self, *names: str) -> None:
        """Kills "nats" or "postgres" with SIGKILL; returns when none of its processes is left."""
        now = status(self.home)
        for name in names:
            server = {"nats": now.nats, "postgres": now.postgres}[name]
            assert server is not None, f"{name} does not run"
            os.kill(server.pid, signal.SIGKILL)
        assert await wait_until(lambda: self._gone(*names), lambda: True, 60)

    async def back(self) -> None:
        """Starts the killed servers again on their data."""
        again = await start(self.home)
        assert (again.nats_url, again.database_url) == (self.where.nats_url, self.where.database_url)

    async def turnlog(self, *arguments: str) -> Ended:
        """Runs a command in a separate process, with only these servers in its settings."""
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        environment |= dict(zip(("NATS_URL", "DATABASE_URL"), self.foreign, strict=True))
        environment |= {"TURNLOG_HOME": str(self.home), "TURNLOG_KEK": KEK, "COLUMNS": "400"}
        return await asyncio.to_thread(run_command, *arguments, environment=environment, folder=self.home)

    async def _gone(self, *names: str) -> bool:
        return not any(running(self.home / name, PROCESSES[name]) for name in names)


@asynccontextmanager
async def own_servers(home: Path) -> AsyncIterator[OwnServers]:
    try:
        yield OwnServers(home, await start(home))
    finally:
        await stop(home)
    assert processes_left_in(home) == []
