"""Runs turnlog's HTTP server in one process, and a FastAPI application with one SELECT in another for comparison."""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from fastapi import FastAPI
from uvicorn.main import run

from tests.benchmarks.stand import Stand
from turnlog.agent.access.api_keys import issue_token
from turnlog.agent.settings import Settings
from turnlog.consumers.cli.running import leave_out_of_garbage
from turnlog.consumers.roles import playing
from turnlog.consumers.runtime import connection_pool, opened

SETTLED_S = 120.0
Reply = Callable[[dict[str, Any]], tuple[str, bytes]]


def bare(database_url: str, port: int) -> None:
    """Serves the application that turnlog is compared with: one FastAPI route that runs one SELECT on a pool."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with connection_pool(database_url) as app.state.pool:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/")
    async def select() -> dict[str, int]:
        async with app.state.pool.connection() as conn:
            row = await (await conn.execute("SELECT 1")).fetchone()
        return {"found": row[0]}

    run(app, port=port, log_level="warning", access_log=False)


async def serve() -> None:
    """Runs turnlog's roles until the process is killed. Reads the settings from the environment."""
    async with opened(Settings(), "turnlog-bench") as runtime, playing(runtime, ("projectors", "agent", "api")):
        leave_out_of_garbage()
        await asyncio.Event().wait()


@dataclass(slots=True)
class Server:
    """A process that serves HTTP. token: returns the API token of a user."""

    pid: int
    port: int
    token: Callable[[str], str]
    _free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def call(self, method: str, path: str, body: object = None, user: str = "ann") -> bytes:
        """Returns the body of a 2xx response over a connection that is kept open. This client takes a tenth of httpx's
        time."""
        # drops connections that the server has closed
        self._free = [(reader, writer) for reader, writer in self._free if not reader.at_eof()]
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self.port)
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token(user)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent)
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in headers:
            payload = await _chunks(reader)
        else:
            payload = await reader.readexactly(int(headers.split(b"content-length:")[1].split(b"\r\n")[0]))
        self._free.append((reader, writer))
        assert headers.split(b" ", 2)[1].startswith(b"2"), payload[:300]
        return payload

    def cpu_s(self) -> float:
        parts = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


@contextlib.asynccontextmanager
async def started(code: str, *, port: int, token: Callable[[str], str], **environment: str) -> AsyncIterator[Server]:
    """Starts a process that runs the code and yields it once it accepts connections."""
    inherited = ("PATH", "HOME", "PYTHONPATH", "OPENBLAS_NUM_THREADS")
    variables = {name: os.environ[name] for name in inherited if name in os.environ} | environment
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=variables)
    try:
        async with asyncio.timeout(SETTLED_S):
            while process.returncode is None:
                with contextlib.suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                await asyncio.sleep(0.1)
        yield Server(process.pid, port, token)
    finally:
        with contextlib.suppress(ProcessLookupError):  # the process has failed and printed the reason
            process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def model(seconds: float, port: int = 0, reply: Reply | None = None) -> AsyncIterator[str]:
    """Yields the URL of a model server whose answers take `seconds`. Its vectors are random, because they only
    represent the cost.

    reply: returns the content type and the body for a request; without it every answer is a stream of "Yes.".
    """
    chunk = {"id": "a", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": []}
    said = {**chunk, "choices": [{"index": 0, "delta": {"content": "Yes."}, "finish_reason": "stop"}]}
    used = {**chunk, "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}
    answer = "".join(f"data: {part}\n\n" for part in (json.dumps(said), json.dumps(used), "[DONE]")).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                sent = await reader.readexactly(int(asked.split(b"content-length:")[1].split(b"\r\n")[0]))
                if asked.startswith(b"post /v1/embeddings"):
                    writer.write(_ok("application/json", _vectors(json.loads(sent))))
                    continue
                await asyncio.sleep(seconds)
                writer.write(_ok(*reply(json.loads(sent))) if reply else _ok("text/event-stream", answer))

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=512)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def _ok(kind: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _vectors(asked: dict[str, Any]) -> bytes:
    texts, as_floats = asked["input"], asked.get("encoding_format") == "float"
    many = 1 if isinstance(texts, str) else len(texts)
    rows = np.random.default_rng().standard_normal((many, 384), np.float32)
    embeddings = [row.tolist() if as_floats else b64encode(row).decode() for row in rows]
    data = [{"object": "embedding", "index": at, "embedding": embedding} for at, embedding in enumerate(embeddings)]
    used = {"prompt_tokens": 9, "total_tokens": 9}
    return json.dumps({"object": "list", "model": "m", "data": data, "usage": used}).encode()


async def answer_at_once(port: int, reply: Reply | None = None) -> None:
    """Runs a model server until the process is ended."""
    async with model(0.0, port, reply):
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def serving(stand: Stand, model_s: float) -> AsyncIterator[tuple[Server, Server]]:
    """Yields turnlog's server, on an empty log and database, and the server of `bare`. model_s: the seconds that the
    model takes to answer."""
    async with stand.empty_log(), stand.fresh_database() as url, model(model_s) as model_url:
        with TemporaryDirectory() as home:
            variables = {
                "DATABASE_URL": url,
                "NATS_URL": stand.nats_url,
                "TURNLOG_PLAINTEXT": "yes",
                "TURNLOG_HOME": home,
            }
            variables |= {"API_BASE_URL": model_url, "TURNLOG_API_SECRET": secrets.token_urlsafe(32)}
            settings = Settings.model_validate(variables)
            port, floor_port = free_port(), free_port()
            floor_code = f"from tests.benchmarks.served import bare; bare({url!r}, {floor_port})"
            code = "import asyncio; from tests.benchmarks.served import serve; asyncio.run(serve())"
            async with opened(settings, "turnlog-bench") as runtime:
                tokens: dict[str, str] = {}

                def token(user: str) -> str:
                    if user not in tokens:
                        made = issue_token(runtime.settings, runtime.settings.tenant, user, "user", timedelta(hours=12))
                        tokens[user] = made.token
                    return tokens[user]

                async with (
                    started(code, port=port, token=token, **variables, TURNLOG_API_PORT=str(port)) as ours,
                    started(floor_code, port=floor_port, token=token) as floor,
                ):
                    yield ours, floor


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
