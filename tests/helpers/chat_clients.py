"""Makes chat clients of a test's server, whose clock advances only when the client sleeps."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from helpers.openai_server import OpenAIServer

from turnlog.agent.models.calls import Breaker, ResilientClient
from turnlog.agent.models.errors import ModelTimedOut
from turnlog.agent.models.openai_chat import OpenAIChat
from turnlog.agent.models.protocol import ChatRequest, Delta

ASK = ChatRequest([{"role": "user", "content": "hello there"}])
ASK_RESTART = ChatRequest(ASK.messages, restart=True)


class Clock:
    """A clock that advances only by calls of sleep."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def words(text: str) -> int:
    return len(text.split())


@asynccontextmanager
async def chat_clients(server: OpenAIServer, clock: Clock) -> AsyncIterator[Callable[..., OpenAIChat]]:
    """Yields a function that makes clients, which are closed at the end."""
    opened: list[OpenAIChat] = []

    def new(key: str | None = None, timeout_s: float = 60.0, url: str | None = None, **options: Any) -> OpenAIChat:
        secret, url = key or server.key, url or server.url
        breaker = Breaker("the test server", clock=lambda: clock.now)
        resilient = ResilientClient(
            url, secret=secret, timeout_s=timeout_s, breaker=breaker, sleep=clock.sleep, jitter=lambda: 0.0
        )
        opened.append(OpenAIChat(url, secret, "test-model", count_tokens=words, resilient=resilient, **options))
        return opened[-1]

    yield new
    for chat in opened:
        await chat.close()


def ended(got: list[Delta]) -> tuple[str, str | None]:
    """Returns the answer's final text and the reason why it ended."""
    final = got[-1].final
    assert final is not None
    return final.text, final.finish_reason


async def deltas(chat: OpenAIChat, request: ChatRequest = ASK) -> list[Delta]:
    return [delta async for delta in chat.stream(request)]


async def cut_off(client: Any, server: OpenAIServer, request: ChatRequest, **reply: Any) -> list[Delta]:
    """Returns the part of an answer that arrives within a limit, which is long enough for a busy machine to send the
    beginning. Also checks that there was only one request, and that the timeout did not count as a failure of the
    server."""
    for seconds in (0.3, 3.0, 30.0):
        server.reply(**reply)
        chat, before = client(), len(server.requests)
        try:
            got = await deltas(chat, replace(request, ends_at=asyncio.get_running_loop().time() + seconds))
        except ModelTimedOut as error:
            if "said nothing" not in str(error):
                raise
        else:
            assert (len(server.requests) - before, chat._resilient.breaker._circuits) == (1, {})
            return got
    raise AssertionError("the server sent nothing")
