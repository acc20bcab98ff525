"""The HTTP server in a process of its own, beside a bare FastAPI route with one SELECT in another."""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from fastapi import FastAPI
from uvicorn.main import run

from tests.benchmarks.measuring import Row, interleaved, ms, per_second, quantile, ratio
from tests.benchmarks.stand import Stand
from turnlog.agent.access.access import Access
from turnlog.agent.settings import Settings
from turnlog.consumers.roles import playing
from turnlog.consumers.runtime import connection_pool, opened

CONNECTIONS, RATE, MESSAGES = 8, 50, 400
MODEL_S, OVERHEAD_S = 2.0, 0.05
SETTLED_S = 120.0


def bare(database_url: str, port: int) -> None:
    """The floor: FastAPI, a pool, one SELECT."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with connection_pool(database_url) as app.state.pool:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/")
    async def one() -> dict[str, int]:
        async with app.state.pool.connection() as conn:
            found = await (await conn.execute("SELECT 1")).fetchone()
        return {"found": found[0]}

    run(app, port=port, log_level="warning", access_log=False)


async def serve() -> None:
    """Plays the roles until the process is ended. The settings are in the environment."""
    async with opened(Settings(), "turnlog-bench") as runtime, playing(runtime, ("projectors", "agent", "api")):
        await asyncio.Event().wait()


@dataclass(slots=True)
class Server:
    """A process that serves HTTP. tokens: by user."""

    pid: int
    port: int
    token: Callable[[str], str]
    _free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def call(self, method: str, path: str, body: object = None, user: str = "ann") -> bytes:
        """The body of a 2xx response, over a kept connection: the client costs a tenth of httpx's time."""
        self._free = [(reader, writer) for reader, writer in self._free if not reader.at_eof()]  # idle ones are closed
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self.port)
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token(user)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent)
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in headers:
            found = await _chunks(reader)
        else:
            found = await reader.readexactly(int(headers.split(b"content-length:")[1].split(b"\r\n")[0]))
        self._free.append((reader, writer))
        assert headers.split(b" ", 2)[1].startswith(b"2"), found[:300]
        return found

    def cpu_s(self) -> float:
        parts = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    found = b""
    while size := int(await reader.readline(), 16):
        found += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return found


@contextlib.asynccontextmanager
async def started(code: str, *, port: int, token: Callable[[str], str], **environment: str) -> AsyncIterator[Server]:
    """A process that runs the code, once it takes connections."""
    given = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ} | environment
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=given)
    try:
        async with asyncio.timeout(SETTLED_S):
            while process.returncode is None:
                with contextlib.suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                await asyncio.sleep(0.1)
        yield Server(process.pid, port, token)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it failed, and said why
            process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def model() -> AsyncIterator[str]:
    """The URL of a model server whose answers take MODEL_S."""
    chunk = {"id": "a", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": []}
    said = {**chunk, "choices": [{"index": 0, "delta": {"content": "Yes."}, "finish_reason": "stop"}]}
    used = {**chunk, "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}
    body = "".join(f"data: {part}\n\n" for part in (json.dumps(said), json.dumps(used), "[DONE]")).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(asked.split(b"content-length:")[1].split(b"\r\n")[0]))
                await asyncio.sleep(MODEL_S)
                writer.write(head + body)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def measure(stand: Stand) -> list[Row]:
    async with stand.empty_log(), stand.fresh_database() as url, model() as model_url:
        with TemporaryDirectory() as home:
            given = {"DATABASE_URL": url, "NATS_URL": stand.nats_url, "TURNLOG_PLAINTEXT": "yes", "TURNLOG_HOME": home}
            given |= {"API_BASE_URL": model_url, "TURNLOG_API_SECRET": secrets.token_urlsafe(32)}
            settings = Settings.model_validate(given)
            port, floor_port = _port(), _port()
            floor_code = f"from tests.benchmarks.server import bare; bare({url!r}, {floor_port})"
            code = "import asyncio; from tests.benchmarks.server import serve; asyncio.run(serve())"
            async with opened(settings, "turnlog-bench") as runtime:
                tokens: dict[str, str] = {}
                issue = runtime.kept(Access).issue_token

                def token(user: str) -> str:
                    return tokens.get(user) or tokens.setdefault(user, issue(user))

                async with (
                    started(code, port=port, token=token, **given, TURNLOG_API_PORT=str(port)) as ours,
                    started(floor_code, port=floor_port, token=token) as floor,
                ):
                    return [
                        await _appending(stand, ours, floor),
                        *await _reading(stand, ours, floor),
                        *[await _asking(ours, many) for many in (20, 200)],
                    ]


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def _appending(stand: Stand, ours: Server, floor: Server) -> Row:
    many = stand.sized(2_000, 200)
    appended = count()
    cpu: dict[int, list[float]] = {ours.pid: [], floor.pid: []}

    async def rate(server: Server, call: Callable[[int], Awaitable[object]]) -> float:
        async def one(connection: int) -> None:
            for _ in range(many // CONNECTIONS):
                await call(connection)

        began, used = time.perf_counter(), server.cpu_s()
        await asyncio.gather(*(one(at) for at in range(CONNECTIONS)))
        cpu[server.pid].append((server.cpu_s() - used) / many * 1000)
        return many / (time.perf_counter() - began)

    async def append(connection: int) -> object:
        turn = {"role": "user", "content": f"Turn {next(appended)} of the benchmark."}
        return await ours.call("POST", f"/api/threads/load-{connection}/turns", {"turns": [turn]})

    mine, theirs = await interleaved(
        stand.rounds, partial(rate, ours, append), partial(rate, floor, lambda _: floor.call("GET", "/"))
    )
    found, spread = ratio(mine, theirs)
    used = [f", {median(cpu[server.pid]):.1f} ms CPU" for server in (ours, floor)]
    shown = [per_second(median(rates)) + more for rates, more in zip((mine, theirs), used, strict=True)]
    return Row("POST turns, one turn", *shown, found, spread, (">=", 0.5), f"{CONNECTIONS} connections.")


async def _reading(stand: Stand, ours: Server, floor: Server) -> list[Row]:
    turns = [{"role": ("user", "assistant")[at % 2], "content": f"Turn {at} on boats. " * 15} for at in range(MESSAGES)]
    await ours.call("POST", "/api/threads/long/turns", {"turns": turns})
    query = {"query": "boats", "keyword_only": True}
    calls: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = {
        "GET threads": (20, partial(ours.call, "GET", "/api/threads?limit=50")),
        "GET context, 400 messages": (20, partial(ours.call, "GET", "/api/threads/long/context")),
        "POST recall, without vectors": (30, partial(ours.call, "POST", "/api/recall", query)),
    }
    seconds = stand.sized(20, 5)
    base = await _p95_ms(seconds, lambda: floor.call("GET", "/"))
    rows = []
    for name, (bound, call) in calls.items():
        await call()
        used = ours.cpu_s()
        p95 = await _p95_ms(seconds, call)
        shown = f"{ms(p95)}, {(ours.cpu_s() - used) / (RATE * seconds) * 1000:.1f} ms CPU"
        method = f"p95 at {RATE}/s; the floor is the bound. The bare route: {ms(base)}."
        rows.append(Row(name, shown, f"{ms(bound)} (bare route {ms(base)})", p95 / bound, None, ("<=", 1.0), method))
    return rows


async def _p95_ms(seconds: int, call: Callable[[], Awaitable[object]]) -> float:
    """From the moment each request was due."""
    began = time.perf_counter() + 0.1

    async def one(number: int) -> float:
        due = began + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await call()
        return 1000 * (time.perf_counter() - due)

    return quantile(await asyncio.gather(*(one(number) for number in range(RATE * seconds))), 0.95)


async def _asking(ours: Server, many: int) -> Row:
    """Streams of as many users at once; each must end with its answer. The memory is that of the whole process."""

    async def ask(number: int) -> float:
        began, user = time.perf_counter(), f"user-{many}-{number}"
        path = f"/api/threads/asked-{user}/answers/stream"
        events = await ours.call("POST", path, {"message": "Is it so?"}, user)
        assert events.count(b"event: done") == 1, events[-300:]
        return time.perf_counter() - began - MODEL_S

    used, before = ours.cpu_s(), ours.megabytes()
    over = await asyncio.gather(*(ask(number) for number in range(many)))
    p50, p95 = quantile(over, 0.5), quantile(over, 0.95)
    shown = f"{ms(1000 * p95)}, {(ours.cpu_s() - used) / many * 1000:.1f} ms CPU, {ours.megabytes() - before:+.1f} MB"
    method = f"From POST to the end of the stream, without the {MODEL_S:g} s of the model. p50: {ms(1000 * p50)}."
    floor = f"{ms(1000 * OVERHEAD_S)} (p50 {ms(1000 * p50)})"
    return Row(f"{many} questions at once, p95 overhead", shown, floor, p95 / OVERHEAD_S, None, ("<=", 1.0), method)
