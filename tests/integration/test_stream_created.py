"""The stream is created even if the server cannot do it at once, for instance after another stream was deleted."""

import asyncio
from pathlib import Path

import pytest
from helpers.servers import eventually

from turnlog.consumers.servers import lease, start
from turnlog.events.errors import LogUnavailable
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions


def in_the_way(home: Path) -> Path:
    """Returns a file at the location of the server's streams."""
    folder = home / "nats" / "store" / "jetstream" / "TURNLOG"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "streams"
    file.touch()
    return file


async def test_the_stream_is_made_as_soon_as_the_server_can(home: Path) -> None:
    async with lease(home):
        servers = await start(home)
        file = in_the_way(home)
        connecting = asyncio.create_task(Log.connect(servers.nats_url, StreamOptions()))

        async def was_tried() -> bool:
            return "Stream create failed" in (home / "nats" / "nats.log").read_text()

        await eventually(was_tried)
        file.unlink()
        log = await connecting
        assert await log.partition_head(0) == 0
        await log.close()


async def test_the_error_says_why_the_stream_cannot_be_made(home: Path) -> None:
    async with lease(home):
        servers = await start(home)
        in_the_way(home)
        with pytest.raises(LogUnavailable, match="error creating store for stream"):
            await Log.connect(servers.nats_url, StreamOptions())
