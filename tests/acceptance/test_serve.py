"""`turnlog serve` ends in time even if clients stay connected."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from helpers.api import Serve
from helpers.cli_process import environment
from helpers.key_rings import KEK
from helpers.preloaded_cli import begin_command
from helpers.servers import eventually
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from turnlog.agent.models.openai_http import tls_context

pytestmark = pytest.mark.slow

PATIENCE_S = 180
MCP = {"Accept": "text/event-stream", "Mcp-Protocol-Version": "2025-06-18"}


@asynccontextmanager
async def open_stream(http: httpx2.AsyncClient, method: str, path: str, **options: Any) -> AsyncIterator[None]:
    """Opens a response that is never read to its end."""
    async with http.stream(method, path, **options) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield


@pytest.mark.nightly
async def test_a_server_with_open_streams_ends_on_a_signal(
    serve: Serve, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    """A hanging answer, a stream of a thread's events and a WebSocket are open; MCP opens no stream."""
    settings = environment(tmp_path, NATS_URL=nats_url, DATABASE_URL=database_url, TURNLOG_KEK=KEK)
    output = tmp_path / "serve.log"
    async with serve() as api, AsyncExitStack() as stack:
        process = begin_command("serve", environment=settings, output=output)
        stack.callback(process.kill)

        async def is_up() -> bool:
            return "worker api runs at " in output.read_text()

        await eventually(is_up)
        url, token = output.read_text().split(" runs at ")[1].split()[0], api.token()
        header = {"Authorization": f"Bearer {token}"}
        http = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=url, headers=header, verify=tls_context(), timeout=60)
        )
        question = {"message": "Who answers?"}
        await stack.enter_async_context(open_stream(http, "POST", "/api/threads/t/answers/stream", json=question))
        await stack.enter_async_context(open_stream(http, "GET", "/api/threads/t/events"))
        assert (await http.get("/mcp", headers=MCP)).status_code == 405  # MCP has no stream that could stay open
        address = f"{url.replace('http', 'ws', 1)}/xyzen/ws/v1/chat/sessions/s/topics/t?token={token}"
        socket = await stack.enter_async_context(connect(address, proxy=None, open_timeout=60))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)
        await asyncio.to_thread(process.join, PATIENCE_S)
        assert process.exitcode == 0
        with pytest.raises(ConnectionClosed):
            await socket.recv()
