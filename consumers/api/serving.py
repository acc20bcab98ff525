"""The role `api`: uvicorn in this process's event loop."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI

from turnlog.agent.operations.dead_letters import React
from turnlog.agent.private_files import open_private
from turnlog.agent.runtime import Runtime
from turnlog.consumers.api.app import create_app, prepare_routes
from turnlog.consumers.api.request_limits import LOOPBACK, PromptProtocol
from turnlog.consumers.servers.nats_server import free_port
from turnlog.events.errors import TurnlogError
from turnlog.events.heartbeats import Heartbeat

GRACE_S = 3
MAX_CONNECTIONS = 4_000


class PortTaken(TurnlogError):
    """The API's port cannot be used."""

    code = "port-taken"


class OpenToAll(TurnlogError):
    """The API would listen beyond this machine, but its secret is only a file on this machine."""

    code = "open-to-all"


class OwnModel(TurnlogError):
    """The API is configured to ask itself for answers."""

    code = "own-model"


class _Server(uvicorn.Server):
    def __init__(self, app: FastAPI, max_body: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=PromptProtocol,
                log_config=None,
                log_level="warning",  # a WebSocket's token is in its query, which uvicorn logs at level INFO
                access_log=False,
                server_header=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=GRACE_S,
                ws_max_size=max_body,
            )
        )
        self.app = app
        self.beat: Heartbeat | None = None

    async def on_tick(self, counter: int) -> bool:
        if self.beat is not None:
            self.beat.beat()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the process: `up` and `worker` end all of their roles in order."""
        yield

    async def end(self) -> None:
        self.app.state.stopping.set()
        self.should_exit = True
        await self.app.state.streams.close()
        await self.app.state.jobs.close()


@contextlib.asynccontextmanager
async def serving(runtime: Runtime, react: React, port_file: Path | None = None) -> AsyncIterator[str]:
    """Serves the API while the block runs, and yields its URL. At the end, open streams end, and running requests have
    GRACE_S to finish.

    port_file: if the port is taken, a free one is used instead and stored in this file for the next start.
    Raises PortTaken, OpenToAll, OwnModel.
    """
    settings = runtime.settings
    if settings.api_host not in LOOPBACK and settings.api_secret is None:
        raise OpenToAll(
            f"TURNLOG_API_HOST={settings.api_host} is reachable from other machines: set TURNLOG_API_SECRET to what "
            "`head -c 32 /dev/urandom | base64` prints, the same for every process that serves the API"
        )
    await asyncio.to_thread(prepare_routes)
    server = _Server(create_app(runtime, react), settings.api_max_body)
    with listening(settings.api_host, settings.api_port, port_file) as listener:
        runtime.api_url = _url(listener)
        check_model(settings.api_base_url, runtime.api_url)

        async def serve(beat: Heartbeat) -> None:
            nonlocal server
            if server.started:  # the server has ended; new connections wait in the listening socket for the next server
                await server.end()
                server = _Server(create_app(runtime, react), settings.api_max_body)
            server.beat = beat
            try:
                await server.serve([listener.dup()])
            finally:
                for asyncio_server in server.servers:
                    asyncio_server.close()

        stop = asyncio.Event()
        async with runtime.heartbeats.running("api", "api", serve, stop, grace_s=None) as beat:
            while not server.started:
                if beat.problem is not None:
                    raise TurnlogError(f"the API does not start: {beat.problem}")
                await asyncio.sleep(0.01)
            try:
                yield runtime.api_url
            finally:
                stop.set()
                await server.end()


@contextlib.contextmanager
def listening(host: str, port: int, port_file: Path | None) -> Iterator[socket.socket]:
    """Yields a socket that listens on the port, or on the one in the file; see `serving`. Raises PortTaken."""
    try:
        if port_file is not None and port_file.exists() and (kept := port_file.read_text("ascii")).isdecimal():
            port = int(kept)
        try:
            listener = _listen(host, port)
        except OSError as error:
            if port_file is None or error.errno != errno.EADDRINUSE:
                raise
            listener = _listen(host, free_port())
            with os.fdopen(open_private(port_file, os.O_WRONLY | os.O_TRUNC), "w") as file:
                file.write(str(listener.getsockname()[1]))
    except OSError as error:
        raise PortTaken(
            f"the API cannot listen on {host}:{port} ({error.strerror or error}); set TURNLOG_API_PORT to a free port"
        ) from None
    with listener:
        yield listener


def check_model(base_url: str | None, api_url: str) -> None:
    """Raises OwnModel if the model's server is the API itself."""
    own = urlsplit(api_url)
    names = {own.netloc, *(f"{host}:{own.port}" for host in ("localhost", "127.0.0.1", "[::1]"))}
    if urlsplit(base_url or "").netloc in names:
        raise OwnModel(
            f"API_BASE_URL (or OPENAI_BASE_URL) is {base_url}, the address of this turnlog itself: each answer would "
            "request another one. Set it to the server of the language model; unset it to answer without a model"
        )


def _listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at once, because two sockets that are only bound can have the same port. Raises
    OSError.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
