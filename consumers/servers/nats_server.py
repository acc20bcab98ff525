"""Runs one nats-server in `<home>/nats`, with nats.conf, subscribers.json and nats.log (all 0600) and store/."""

import asyncio
import json
import secrets
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from turnlog.consumers.servers.binaries import nats_binary
from turnlog.consumers.servers.errors import ServerStartFailed
from turnlog.consumers.servers.home import write_private
from turnlog.consumers.servers.nats_config import ACCOUNT, USER, NatsAddress, read_address, render
from turnlog.consumers.servers.processes import Launched, alive, end, launch, running, wait_until
from turnlog.consumers.servers.server_user import Identity, hand_over, let_reach, let_run


class Answer(Enum):
    """The result of a handshake with a nats-server."""

    NOT_YET = "nobody listens"
    STRANGER = "it is another server, or has another password"
    READY = "it is our server, and accepts the password"


async def probe(address: NatsAddress, name: str) -> Answer:
    """Returns the result of one handshake. A server that listens has finished its JetStream recovery."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    except (OSError, TimeoutError):
        return Answer.NOT_YET
    try:
        async with asyncio.timeout(5):
            return await _handshake(reader, writer, address.token, name)
    except (OSError, TimeoutError, ValueError):
        return Answer.STRANGER
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, name: str) -> Answer:
    verb, _, info = (await reader.readline()).partition(b" ")
    if verb != b"INFO" or json.loads(info).get("server_name") != name:
        return Answer.STRANGER
    connect = {"user": USER, "pass": token, "verbose": False, "pedantic": False, "lang": "python", "version": "0"}
    writer.write(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
    return Answer.READY if (await reader.readline()).startswith(b"PONG") else Answer.STRANGER


NAME = "nats-server"
PORT_TIMEOUT_S = 3.0  # a killed server can hold its port slightly longer than its process is visible
NO_ACCOUNT = "$G"  # the server's default account; homes made before there were accounts have their streams here


@dataclass(frozen=True, slots=True)
class NatsServer:
    """A nats-server that can be started and stopped.

    wish: the wanted address; port 0 means any free port, and an empty token means a new token. Both are kept over
    restarts, so that clients can reconnect. more: further lines of the configuration."""

    name: str
    folder: Path
    wish: NatsAddress
    identity: Identity | None
    timeout: float
    more: tuple[str, ...] = ()

    async def start(self) -> tuple[str, bool]:
        """Starts the server or attaches to it. Returns (url, whether it was started). Raises ServerStartFailed,
        OSError."""
        if (url := await self.attach()) is not None:
            return url, False
        await self.stop()
        self._prepare_folder()
        address = await self._free_address()
        server = self._launch(address)
        if not await wait_until(lambda: self._answers(address), server.alive, self.timeout):
            raise server.failure("nats-server did not start")
        return address.url, True

    async def attach(self) -> str | None:
        """Returns the URL of the running server; None if no server runs or it refuses the known token."""
        processes = running(self.folder, NAME)
        address = self.known_address()
        if len(processes) != 1 or address is None:
            return None
        answers = await wait_until(lambda: self._settled(address), lambda: alive(processes[0]), self.timeout)
        return address.url if answers and await self._answers(address) else None

    async def stop(self) -> None:
        """Ends any nats-server that runs in the folder and keeps the data. Raises ServerStopFailed."""
        await end(running(self.folder, NAME), [(signal.SIGTERM, 30.0)], lambda: running(self.folder, NAME))

    def known_address(self) -> NatsAddress | None:
        conf = self.folder / "nats.conf"
        return read_address(conf.read_text()) if conf.is_file() else None

    def subscribers(self) -> dict[str, str]:
        """Returns the passwords of subscribers by their durables."""
        kept = self.folder / "subscribers.json"
        passwords: dict[str, str] = json.loads(kept.read_text()) if kept.is_file() else {}
        return passwords

    def keep_subscriber(self, durable: str, password: str | None) -> None:
        """Lets a subscriber connect after the next start of the server. password: None removes the subscriber."""
        others = {name: value for name, value in self.subscribers().items() if name != durable}
        kept = others if password is None else others | {durable: password}
        write_private(self.folder / "subscribers.json", json.dumps(kept), self.identity)

    def _prepare_folder(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        hand_over(self.folder, self.identity)
        let_reach(self.folder, self.identity)
        let_run(nats_binary(), self.identity)
        streams = self.folder / "store" / "jetstream"
        if (streams / NO_ACCOUNT).is_dir() and not (streams / ACCOUNT).exists():
            (streams / NO_ACCOUNT).rename(streams / ACCOUNT)

    async def _free_address(self) -> NatsAddress:
        """Returns the address with the wished port, else that of the last run, to which clients reconnect, else a free
        port."""
        wish, known = self.wish, self.known_address()
        token = wish.token or (known.token if known else new_token())
        port = wish.port or (known.port if known else 0)

        async def is_free() -> bool:
            return port_is_free(port)

        if port and await wait_until(is_free, lambda: True, PORT_TIMEOUT_S):
            return NatsAddress(port, token)
        if wish.port:
            raise ServerStartFailed(f"port {wish.port} for nats-server is taken; free it or choose another")
        return NatsAddress(free_port(), token)

    def _launch(self, address: NatsAddress) -> Launched:
        conf = self.folder / "nats.conf"
        write_private(conf, render(self.name, address, self.subscribers(), self.more), self.identity)
        return launch([nats_binary(), "-c", conf], self.folder, self.folder / "nats.log", self.identity)

    async def _answers(self, address: NatsAddress) -> bool:
        return await probe(address, self.name) is Answer.READY

    async def _settled(self, address: NatsAddress) -> bool:
        return await probe(address, self.name) is not Answer.NOT_YET


def new_token() -> str:
    return secrets.token_urlsafe(24)


def port_is_free(port: int) -> bool:
    """Returns whether a server can listen on the loopback port; False for port 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        # Go sets this option too, so that connections of the last run in TIME_WAIT do not block the port.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return port != 0


def free_port() -> int:
    """Returns a free loopback port below the range of outgoing connections, so that the port stays free while the
    server is down."""
    for _ in range(1000):
        if port_is_free(port := 20_000 + secrets.randbelow(12_000)):
            return port
    raise ServerStartFailed("no free port between 20000 and 32000 on 127.0.0.1")
