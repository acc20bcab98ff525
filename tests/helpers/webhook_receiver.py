"""Receives webhooks: answers with the status that a test sets, and keeps the received requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Receiver:
    url: str = ""
    status: int = 204
    received: asyncio.Queue[tuple[dict[str, str], bytes]] = field(default_factory=asyncio.Queue)


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {name.lower(): value for line in head.splitlines()[1:-1] for name, _, value in [line.partition(": ")]}
        made.received.put_nowait((headers, await reader.readexactly(int(headers["content-length"]))))
        writer.write(f"HTTP/1.1 {made.status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield made
