"""Checks many open connections to the HTTP server: each gets its events, and the memory does not grow."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection, connect

from tests.benchmarks.measuring import Row, ms, quantile
from tests.benchmarks.served import Server, serving
from tests.benchmarks.stand import Stand

STREAMS, A_USER = 500, 10  # A_USER: the maximum number of event streams of a user
SOCKETS = 200
ROUNDS = 10
GROWTH = 1.1  # allowed growth of the process from the first round to the last


async def measure(stand: Stand) -> list[Row]:
    async with serving(stand, 0.0) as (ours, _):
        return [await _streams(stand, ours), await _sockets(stand, ours)]


@dataclass(slots=True)
class _Round:
    """The server's resources for a round. megabytes: the memory of the entire process afterwards."""

    latencies: list[float] = field(default_factory=list)
    megabytes: float = 0.0


async def _streams(stand: Stand, ours: Server) -> Row:
    """Opens event streams of threads. Each round appends a turn to every thread, and all of its streams must show the
    turn."""
    many = stand.sized(STREAMS, STREAMS // 5)
    users = [f"listener-{number}" for number in range(many // A_USER)]

    async def append(user: str, text: str) -> None:
        await ours.call("POST", f"/api/threads/{user}/turns", {"turns": [{"role": "user", "content": text}]}, user)

    for user in users:
        await append(user, "Begins.")
    before, used = ours.megabytes(), ours.cpu_s()
    async with contextlib.AsyncExitStack() as opened:
        async with asyncio.TaskGroup() as group:
            opening = [group.create_task(opened.enter_async_context(_stream(ours, user))) for user in users * A_USER]
        streams = [task.result() for task in opening]
        took = ours.cpu_s() - used

        async def one_round(number: int) -> _Round:
            began, measured = time.perf_counter(), _Round()

            async def hear(stream: asyncio.StreamReader) -> None:
                while f"Turn {number}.".encode() not in await stream.readline():
                    pass
                measured.latencies.append(time.perf_counter() - began)

            await asyncio.gather(*map(hear, streams), *(append(user, f"Turn {number}.") for user in users))
            measured.megabytes = ours.megabytes()
            return measured

        return await _row(f"{many} streams of events", ours, before, took / many, one_round)


@contextlib.asynccontextmanager
async def _stream(ours: Server, user: str) -> AsyncIterator[asyncio.StreamReader]:
    """Yields a stream that has shown the first turn."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ours.port)
    head = f"GET /api/threads/{user}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ours.token(user)}"
    writer.write(f"{head}\r\n\r\n".encode())
    try:
        while b"Begins." not in await reader.readline():
            pass
        yield reader
    finally:
        writer.close()


async def _sockets(stand: Stand, ours: Server) -> Row:
    """Opens a WebSocket for each user. Each round asks a question on every socket, and each must end with its
    answer."""
    many = stand.sized(SOCKETS, SOCKETS // 5)
    before, used = ours.megabytes(), ours.cpu_s()
    async with contextlib.AsyncExitStack() as opened:
        async with asyncio.TaskGroup() as group:
            opening = [group.create_task(opened.enter_async_context(_socket(ours, at))) for at in range(many)]
        sockets = [task.result() for task in opening]
        took = ours.cpu_s() - used

        async def one_round(number: int) -> _Round:
            measured = _Round()

            async def ask(socket: ClientConnection) -> None:
                began = time.perf_counter()
                await socket.send(json.dumps({"message": f"Question {number}?"}))
                while (said := json.loads(await socket.recv()))["type"] != "streaming_end":
                    assert said["type"] != "error", said
                measured.latencies.append(time.perf_counter() - began)

            await asyncio.gather(*map(ask, sockets))
            measured.megabytes = ours.megabytes()
            return measured

        return await _row(f"{many} WebSockets", ours, before, took / many, one_round)


def _socket(ours: Server, at: int) -> "contextlib.AbstractAsyncContextManager[ClientConnection]":
    path = f"/xyzen/ws/v1/chat/sessions/s/topics/topic-{at}?token={ours.token(f'speaker-{at}')}"
    return connect(f"ws://127.0.0.1:{ours.port}{path}", open_timeout=120, ping_interval=None)


async def _row(
    what: str, ours: Server, before: float, opening_s: float, one_round: Callable[[int], Awaitable[_Round]]
) -> Row:
    used = ours.cpu_s()
    rounds = [await one_round(number) for number in range(ROUNDS)]
    each = len(rounds[0].latencies)
    first, last = rounds[0].megabytes, rounds[-1].megabytes
    p95 = quantile([1000 * latency for measured in rounds[1:] for latency in measured.latencies], 0.95)
    cpu = 1000 * (ours.cpu_s() - used) / (ROUNDS * each)
    shown = f"{last:.0f} MB, p95 {ms(p95)}, {cpu:.1f} ms CPU"
    floor = f"{first:.0f} MB after the first of {ROUNDS} rounds, {before:.0f} before"
    method = f"Opening one: {1000 * opening_s:.1f} ms CPU. Target: memory after the last round by the first."
    return Row(what, shown, floor, last / first, None, ("<=", GROWTH), method)
