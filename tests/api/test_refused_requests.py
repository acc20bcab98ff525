"""A refused request creates no conversation, so its name stays free for others."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from helpers.api import Api, Serve

from turnlog.agent.access.limits import change_limits

pytestmark = pytest.mark.slow

EMPTY = {"model": "m", "messages": [{"role": "user", "content": None}]}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}


@pytest.fixture
async def api(serve: Serve) -> AsyncIterator[Api]:
    async with serve("agent") as api:
        yield api


async def names(client: httpx2.AsyncClient) -> list[str]:
    return [thread["thread"] for thread in (await client.get("/api/threads")).json()["items"]]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", EMPTY),
        ("/api/threads/main/turns", {"turns": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("/ai-agent/conversations/main/messages", {"role": "user", "content": [{"type": "text"}]}),
        ("/ai-agent/chat", {"message": "Hello.", "conversationId": "main", "agentType": "nobody"}),
        ("/v1/conversations", {"items": [{"role": "user", "content": [{"type": "input_text"}]}]}),
    ],
)
async def test_a_refused_request_leaves_no_conversation(api: Api, path: str, body: Any) -> None:
    async with api.client("ann") as ann, api.client("bob") as bob:
        refused = await ann.post(path, json=body, headers={"X-Turnlog-Thread": "main"})
        assert 400 <= refused.status_code < 500, refused.text
        assert await names(ann) == []
        assert (await bob.post("/api/threads/main/turns", json={"turns": [HELLO["messages"][0]]})).status_code == 201


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", HELLO),
        ("/v1/responses", {"model": "m", "input": "Hello.", "conversation": "main"}),
        ("/api/threads/main/answers", {"message": "Hello."}),
        ("/ai-agent/chat", {"message": "Hello.", "conversationId": "main"}),
    ],
)
async def test_a_throttled_request_leaves_no_conversation(api: Api, path: str, body: Any) -> None:
    await change_limits(api.runtime, "default", "user", {"user_per_minute": 0})
    async with api.client("ann") as ann:
        refused = await ann.post(path, json=body, headers={"X-Turnlog-Thread": "main"})
        assert refused.status_code == 429, refused.text
        assert await names(ann) == []
