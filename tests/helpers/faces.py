"""Asks a question in a thread through each interface of the HTTP server."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

Ask = Callable[[httpx2.AsyncClient, str, str], Awaitable[httpx2.Response]]


async def completion(
    client: httpx2.AsyncClient, thread: str, text: str, headers: dict[str, str] | None = None, **more: Any
) -> httpx2.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    named = {"X-Turnlog-Thread": thread, **(headers or {})}
    return await client.post("/v1/chat/completions", json=body, headers=named)


async def response(client: httpx2.AsyncClient, thread: str, text: str) -> httpx2.Response:
    return await client.post("/v1/responses", json={"model": "m", "input": text, "conversation": thread})


async def answer(client: httpx2.AsyncClient, thread: str, text: str) -> httpx2.Response:
    return await client.post(f"/api/threads/{thread}/answers", json={"message": text})


async def controller(client: httpx2.AsyncClient, thread: str, text: str) -> httpx2.Response:
    return await client.post("/ai-agent/chat", json={"message": text, "conversationId": thread})


async def message(client: httpx2.AsyncClient, thread: str, text: str) -> httpx2.Response:
    path = f"/ai-agent/conversations/{thread}/messages"
    return await client.post(path, json={"role": "user", "content": text})


async def graph(client: httpx2.AsyncClient, thread: str, text: str) -> httpx2.Response:
    return await client.post("/api/chat/stream", json={"message": text, "conversation_id": thread})


async def turns(client: httpx2.AsyncClient, thread: str) -> list[str]:
    """Returns the contents of the thread's turns, in order."""
    items = (await client.get(f"/api/threads/{thread}/turns?limit=200")).json()["items"]
    return [turn["content"] for turn in items]
