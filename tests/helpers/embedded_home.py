"""Lets tests of the embedded servers write to both servers of a home, read from them and kill them."""

import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import nats
import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from turnlog.consumers.servers import Servers, status
from turnlog.consumers.servers.processes import alive, wait_until


async def say(servers: Servers, text: str) -> None:
    """Writes `text` to both servers."""
    async with await nats.connect(servers.nats_url) as client:
        jetstream = client.jetstream()
        await jetstream.add_stream(name="NOTES", subjects=["notes"])
        await jetstream.publish("notes", text.encode())
    async with await psycopg.AsyncConnection.connect(servers.database_url) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
        await connection.execute("INSERT INTO notes VALUES (%s)", [text])


async def said(servers: Servers) -> tuple[list[str], list[str]]:
    """Returns everything that was written so far: (in JetStream, in Postgres)."""
    async with await nats.connect(servers.nats_url) as client:
        jetstream = client.jetstream()
        info = await jetstream.stream_info("NOTES")
        messages = [await jetstream.get_msg("NOTES", seq) for seq in range(1, info.state.last_seq + 1)]
    async with await psycopg.AsyncConnection.connect(servers.database_url) as connection:
        rows = await (await connection.execute("SELECT text FROM notes")).fetchall()
    return [(m.data or b"").decode() for m in messages], [row[0] for row in rows]


def socket_folder(servers: Servers) -> Path:
    return Path(str(conninfo_to_dict(servers.database_url)["host"]))


def pids(home: Path) -> dict[str, int]:
    now = status(home)
    return {name: it.pid for name, it in (("nats", now.nats), ("postgres", now.postgres)) if it is not None}


async def kill(home: Path, *names: str) -> None:
    victims = [psutil.Process(pid) for name, pid in pids(home).items() if name in names]
    for victim in victims:
        victim.kill()
    assert await wait_until(partial(dead, victims), lambda: True, timeout=60)


async def dead(processes: Iterable[psutil.Process]) -> bool:
    return not any(alive(process) for process in processes)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
