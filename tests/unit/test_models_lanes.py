"""Answers take priority over background work on a model server; no test waits for real time limits."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from helpers.openai_server import OpenAIServer
from helpers.servers import eventually

from turnlog.agent.models.lanes import Lane, lane_of
from turnlog.agent.models.openai_chat import OpenAIChat
from turnlog.agent.models.protocol import ChatRequest
from turnlog.agent.settings import is_near

ASK = ChatRequest([{"role": "user", "content": "hello there"}])


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


@pytest.fixture
def lane() -> Lane:
    return Lane("test")


@pytest.fixture
async def chats(server: OpenAIServer, lane: Lane) -> AsyncIterator[tuple[OpenAIChat, OpenAIChat]]:
    """Yields a client for answers and a client for background work."""
    made = [
        OpenAIChat(server.url, server.key, "m", count_tokens=len, lane=lane, background=background)
        for background in (False, True)
    ]
    yield made[0], made[1]
    for client in made:
        await client.close()


async def test_a_background_call_gives_way_to_an_answer_and_is_made_again(chats, server, lane):
    answering, background = chats
    server.hang()  # the background call, whose connection is closed meanwhile
    working = asyncio.create_task(background.complete(ASK))
    await asyncio.to_thread(server.wait_for_requests, 1)
    answer = aiter(answering.stream(ASK))
    assert (await anext(answer)).text

    async def has_given_way() -> bool:
        return not lane._has_background

    await eventually(has_given_way)
    assert not working.done() and lane.is_answering
    assert [delta.final async for delta in answer][-1].text == "echo: hello there"
    assert (await working).text == "echo: hello there"
    # llama.cpp notices only for streams that a client has disconnected.
    assert all(body.get("stream") for body in server.bodies())
    assert (len(server.bodies()), background._resilient.breaker._circuits) == (3, {})


async def test_a_background_call_waits_for_an_answer_of_another_process(chats, server, lane):
    _, background = chats
    lane.heard("another", 1)
    working = asyncio.create_task(background.complete(ASK))
    await asyncio.sleep(0)
    assert server.requests == []
    lane.heard("another", 0)
    assert (await working).text == "echo: hello there"


async def test_an_answer_of_a_dead_process_no_longer_counts():
    lane = Lane("test", silent_s=0.0)
    lane.heard("another", 1)
    assert not lane.is_answering


async def test_a_background_call_gives_way_only_for_a_limited_time():
    lane = Lane("test", patience_s=0.0)

    async def work() -> str:
        return "done"

    with lane.answer():
        assert await lane.background(work) == "done"


async def test_background_calls_run_one_by_one_and_their_errors_are_raised(lane):
    running, most = 0, 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        raise KeyError

    results = await asyncio.gather(*(lane.background(work) for _ in range(3)), return_exceptions=True)
    assert ([type(result) for result in results], most) == ([KeyError] * 3, 1)


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("http://127.0.0.1:8080/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://localhost:11434/v1", True),
        ("http://ollama:11434/v1", True),
        ("http://host.docker.internal:1234/v1", True),
        ("http://10.0.0.7:8000/v1", False),
        ("https://api.openai.com/v1", False),
    ],
)
def test_only_servers_nearby_are_small_unless_said_otherwise(url, near):
    assert is_near(url) is near
    assert (lane_of(url) is not None) is near
    assert lane_of(url, "always") is lane_of(url, "always") is not None
    assert lane_of(url, "never") is None
