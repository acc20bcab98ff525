"""Connects to the WebSocket and MCP with a person's token, and makes headers that must be refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import jwt
from helpers.api import Api
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from websockets.asyncio.client import connect

from turnlog.agent.access.secret import secret_of


def socket(api: Api, topic: str, query: str = "", **options: Any) -> connect:
    address = f"{api.url.replace('http', 'ws', 1)}/xyzen/ws/v1/chat/sessions/s/topics/{topic}{query}"
    return connect(address, proxy=None, open_timeout=60, **options)


def forged(api: Api) -> dict[str, str]:
    """Returns authorization headers that must be refused, by their defect."""
    good = api.token()
    claims = jwt.decode(good, options={"verify_signature": False})
    public = {"kid": jwt.get_unverified_header(good)["kid"]}
    signing = secret_of(api.runtime.settings).signing
    claimed = jwt.encode(claims, "x" * 64, "HS256", public)
    return {
        "expired": f"Bearer {jwt.encode(claims | {'exp': claims['iat'] - 600}, signing, 'EdDSA', public)}",
        "no algorithm": f"Bearer {jwt.encode(claims, None, 'none', public)}",
        "another algorithm": f"Bearer {claimed}",
        "cut": f"Bearer {good[:-4]}",
        "basic": "Basic YW5uOmFubg==",
        "empty": "Bearer",
    }


@asynccontextmanager
async def mcp_of(
    api: Api, user: str = "ann", path: str = "/mcp", zone: str = "", **claims: Any
) -> AsyncIterator[Client]:
    header = {"Authorization": f"Bearer {api.token(user, **claims)}", "X-Turnlog-Timezone": zone}
    async with (
        httpx2.AsyncClient(headers=header, timeout=60) as http,
        Client(streamable_http_client(f"{api.url}{path}", http_client=http)) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer
    return answer.structured_content
