"""The WebSocket and MCP refuse users without rights, also after a rebuild."""

import json
from typing import Any

import httpx2
import pytest
from helpers.api import Api, Serve
from helpers.callers import call, forged, mcp_of, socket
from websockets.exceptions import InvalidStatus

from turnlog.agent.operations.read_models import rebuild
from turnlog.events.progress import no_progress

pytestmark = pytest.mark.slow

# Each tool with arguments that refer to Ann's thread and memory, and the scope that it needs.
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "remember": ("write", {"text": "Ann likes coffee."}),
    "recall": ("read", {"query": "tea", "thread_id": "t"}),
    "context": ("read", {"thread_id": "t"}),
    "threads": ("read", {}),
    "memories": ("read", {}),
    "forget": ("write", {"memory_id": "of Ann"}),
}
SCOPES = ("read", "write", "ask", "erase", "operate")


async def status_of_socket(api: Api, topic: str, token: str) -> int:
    """Returns the status of the handshake, 101 if the socket opened."""
    try:
        async with socket(api, topic, f"?token={token}"):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


async def test_mcp_and_the_socket_refuse_forged_tokens(serve: Serve) -> None:
    async with serve() as api, httpx2.AsyncClient(timeout=60) as client:
        for what, header in (forged(api) | {"none": ""}).items():
            for method in ("POST", "DELETE"):
                answer = await client.request(method, f"{api.url}/mcp", json={}, headers={"Authorization": header})
                assert answer.status_code == 401, f"{method} with a token that is {what}"
            assert await status_of_socket(api, "t", header.rpartition(" ")[2]) == 401, what


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_token_with_one_scope_may_use_only_its_tools(serve: Serve, scope: str) -> None:
    async with serve() as api, mcp_of(api, role="admin", scopes=[scope]) as client:
        for tool, (needed, arguments) in TOOLS.items():
            complete = arguments | ({"memory_id": "00000000-0000-4000-8000-000000000000"} if tool == "forget" else {})
            answer = str(await client.call_tool(tool, complete))
            assert ("[forbidden]" in answer) == (scope != needed), f"{tool}: {answer}"
        opened = await status_of_socket(api, "t", api.token(role="admin", scopes=[scope]))
        assert opened == (101 if scope == "ask" else 403)


async def test_nobody_reaches_another_persons_thread_or_memory(serve: Serve) -> None:
    async with (
        serve() as api,
        api.client() as ann,
        mcp_of(api) as hers,
        mcp_of(api, "bob") as bob,
        mcp_of(api, tenant="acme") as other,
    ):
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "I like green tea."}]})
        kept = (await ann.post("/api/memories", json={"content": "Ann likes tea."})).json()["memory_id"]
        for rebuilt in (False, True):
            if rebuilt:
                await rebuild(api.runtime, None, no_progress)
            for client in (bob, other):
                for tool, arguments in (
                    ("recall", {"query": "tea", "thread_id": "t"}),
                    ("context", {"thread_id": "t"}),
                    ("forget", {"memory_id": kept}),
                ):
                    assert "[not-found]" in str(await client.call_tool(tool, arguments)), f"{tool} rebuilt={rebuilt}"
                recalled = await call(client, "recall", query="tea")
                assert recalled["turns"] == recalled["memories"] == []
                assert (await call(client, "threads"))["threads"] == (await call(client, "memories"))["memories"] == []
            async with socket(api, "t", f"?token={api.token('bob')}&after=0") as ws:  # bob's own topic of this name
                await ws.send("{}")
                assert json.loads(await ws.recv())["type"] == "error"
            assert await status_of_socket(api, "t", api.token()) == 101
            assert len((await call(hers, "memories"))["memories"]) == 1
