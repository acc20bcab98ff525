"""Starts and stops both servers of a home, shows their status, and holds leases, which decide how long they run."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from turnlog.agent.private_files import close_files
from turnlog.agent.settings import Settings
from turnlog.consumers.servers.errors import ServerStartFailed, ServerStopFailed, folder_errors
from turnlog.consumers.servers.home import Home, hold_lease, home_at, is_leased, locked
from turnlog.consumers.servers.nats_config import USER, NatsAddress
from turnlog.consumers.servers.nats_server import NAME as NATS
from turnlog.consumers.servers.nats_server import NatsServer
from turnlog.consumers.servers.postgres_server import PostgresServer, socket_folder, url_at
from turnlog.consumers.servers.processes import running
from turnlog.consumers.servers.server_user import Identity, server_identity

START_TIMEOUT_S = 60.0  # covers a crash recovery


@dataclass(frozen=True, slots=True)
class Servers:
    """The URLs of the servers. started: the names of the servers that this call started ("nats", "postgres")."""

    nats_url: str
    database_url: str
    started: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """The processes of a home's servers; None for a server that does not run."""

    nats: psutil.Process | None
    postgres: psutil.Process | None


async def start(home: Path, nats_port: int = 0) -> Servers:
    """Starts the servers of `home`, or attaches to running servers. Raises ServerStartFailed.

    nats_port: 0 takes a free port and keeps it over restarts. The servers outlive the caller and run until `stop`,
    unless the caller holds a `lease` around the call.
    """
    here = home_at(home)
    async with locked(here):
        with folder_errors(here.path):
            return await _start(here, nats_port)


async def _start(home: Home, nats_port: int) -> Servers:
    for folder in (home.path, home.nats, home.postgres):
        close_files(folder)
    identity = server_identity(home.path)
    nats, postgres = _nats(home, identity, nats_port), _postgres(home, identity)
    # Waits for both even if one fails, so that no task continues after the call.
    results = await asyncio.gather(nats.start(), postgres.start(), return_exceptions=True)
    stops: list[Callable[[], Awaitable[None]]] = [nats.stop, postgres.stop]
    if failure := next((result for result in results if isinstance(result, BaseException)), None):
        for result, stop_it in zip(results, stops, strict=True):
            if isinstance(result, BaseException) or result[1]:
                await stop_it()
        raise failure
    urls = [result for result in results if not isinstance(result, BaseException)]
    started = tuple(name for name, (_, new) in zip(("nats", "postgres"), urls, strict=True) if new)
    return Servers(urls[0][0], urls[1][0], started)


async def stop(home: Path) -> None:
    """Stops both servers, even if they are in use, and keeps the data. Idempotent. Raises ServerStopFailed."""
    here = home_at(home)
    if not here.path.is_dir():
        return
    async with locked(here):
        with folder_errors(here.path):
            here.keep_flag.unlink(missing_ok=True)
            await _stop(here)


async def _stop(home: Home) -> None:
    nats, postgres = _nats(home), _postgres(home)
    results = await asyncio.gather(nats.stop(), postgres.stop(), return_exceptions=True)
    if failure := next((result for result in results if result is not None), None):
        raise failure


async def keep(home: Path) -> None:
    """Keeps the servers of `home` running until an explicit `stop`, even without a lease (`turnlog up`)."""
    here = home_at(home)
    async with locked(here):
        with folder_errors(here.path):
            here.keep_flag.touch(mode=0o600)


@asynccontextmanager
async def lease(home: Path) -> AsyncIterator[None]:
    """Holds a lease on the servers of `home` while the block runs; take it before `start`. The end of the last lease
    stops the servers, unless `keep` was called. A killed process's lease ends at once."""
    here = home_at(home)
    async with locked(here):
        share = hold_lease(here)
    try:
        yield
    finally:
        os.close(share)
        async with locked(here):
            if not here.keep_flag.exists() and not is_leased(here):
                await _stop(here)


async def change_subscriber(home: Path, durable: str, password: str | None) -> None:
    """Lets a subscriber connect to the home's NATS. password: None removes the subscriber.

    Raises ServerStartFailed, ServerStopFailed; the subscriber then cannot connect, and the server is started without
    it. nats-server is restarted, and its clients reconnect. A reload is not enough: after a second reload, requests of
    the new account were not answered (2.15.1).
    """
    here = home_at(home)
    async with locked(here):
        with folder_errors(here.path):
            nats = _nats(here, server_identity(here.path))
            nats.keep_subscriber(durable, password)
            try:
                await nats.stop()
                await nats.start()
            except (ServerStartFailed, ServerStopFailed):
                nats.keep_subscriber(durable, None)
                with contextlib.suppress(ServerStartFailed):
                    await nats.start()
                raise


def without_own_addresses(settings: Settings) -> Settings:
    """Returns the settings without the addresses of the home's own servers, which `turnlog env` prints, so that these
    servers are still treated as embedded."""
    here, own = home_at(settings.home), dict[str, None]()
    if settings.database_url == url_at(socket_folder(here.postgres, here.key)):
        own["database_url"] = None
    with contextlib.suppress(OSError):  # a home that this user cannot read belongs to somebody else
        nats = _nats(here).known_address() if settings.nats_url else None
        # The port may have changed, but the password stays.
        if nats is not None and str(settings.nats_url).startswith(f"nats://{USER}:{nats.token}@127.0.0.1:"):
            own["nats_url"] = None
    return settings.model_copy(update=own)


def status(home: Path) -> Status:
    """Returns the running servers of `home`, which are found among all processes."""
    here = home_at(home)
    with folder_errors(here.path):
        return Status(next(iter(running(here.nats, NATS)), None), _postgres(here).leader())


def _nats(home: Home, identity: Identity | None = None, port: int = 0) -> NatsServer:
    return NatsServer(f"turnlog-{home.key}", home.nats, NatsAddress(port, ""), identity, START_TIMEOUT_S)


def _postgres(home: Home, identity: Identity | None = None) -> PostgresServer:
    return PostgresServer(home.postgres, home.key, identity, START_TIMEOUT_S)
