"""Tests how responses of chat servers are read and abandoned, with a real local server of the OpenAI API."""

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from helpers import nightly
from helpers.chat_clients import ASK, Clock, chat_clients, deltas, ended, words
from helpers.openai_server import OpenAIServer

from turnlog.agent.models.openai_chat import OpenAIChat
from turnlog.agent.models.openai_http import BoundedResponse, tls_context


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


@pytest.fixture
async def chat(server: OpenAIServer) -> AsyncIterator[OpenAIChat]:
    async with chat_clients(server, Clock()) as new:
        yield new()


@pytest.mark.parametrize("end", ["too long", "caller leaves", "cancelled"])
async def test_all_generators_of_an_answer_that_ends_early_are_closed(chat, server, end):
    left: list[str] = []
    hooks, stop = sys.get_asyncgen_hooks(), threading.Event()

    def leave(generator: AsyncGenerator[object, None]) -> None:
        left.append(generator.__qualname__)
        hooks.finalizer(generator)

    def collect() -> None:
        while not stop.wait(0.001):
            gc.collect()

    collector = threading.Thread(target=collect)
    sys.set_asyncgen_hooks(finalizer=leave)
    collector.start()
    try:
        for _ in range(nightly.examples(20)):
            server.reply(" ".join(map(str, range(300))))
            await _end_early(chat, end)
    finally:
        stop.set()
        await asyncio.to_thread(collector.join)
        sys.set_asyncgen_hooks(*hooks)
    assert set(left) <= {"PoolByteStream.__aiter__"}, "httpx2 leaves its own innermost one"


async def _end_early(chat: OpenAIChat, end: str) -> None:
    """Reads an answer until it exceeds its limit, the caller stops reading or the task is cancelled."""
    if end == "too long":
        assert ended(await deltas(chat, replace(ASK, max_tokens=10)))[1] == "length"
        return

    async def read() -> None:
        async with aclosing(chat.stream(ASK)) as stream:
            async for _ in stream:
                if end == "caller leaves":
                    return
                begun.set()

    begun = asyncio.Event()
    task = asyncio.create_task(read())
    if end == "cancelled":
        await begun.wait()
        task.cancel()
    await asyncio.wait([task])


async def test_the_connection_of_an_answer_that_was_read_to_its_end_is_used_again(chat, server):
    for _ in range(3):
        await deltas(chat)
    assert len({request.port for request in server.requests}) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_events_are_read_in_parts_of_any_size(size, line_end):
    lines = [
        ": comment",
        "data: {1}",
        "",
        "event: x",
        "id: 7",
        "data:{2",
        "data: }",
        "",
        "",
        "data: [DONE]",
        "",
        "data: no",
        "",
    ]
    body = (line_end.join(lines) + line_end).encode()

    async def parts() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    response = BoundedResponse(200, content=parts())
    assert [data async for data in response.events()] == [b"{1}", b"{2\n}"]


async def test_all_clients_load_the_certificate_authorities_once() -> None:
    tls_context.cache_clear()
    for _ in range(3):
        await OpenAIChat("https://example.org/v1", "key", "m", count_tokens=words).close()
    assert tls_context.cache_info().misses == 1
