"""Implements the HTTP client for servers that speak the OpenAI API; it limits the size of responses and reads event
streams.

Each generator closes the generator that it reads from, because the garbage collector may end a generator in any thread.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import cache
from typing import Any

import httpx2
import openai
from openai import AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionChunk

from turnlog.agent.models.calls import shown_url
from turnlog.agent.models.errors import NotAnAPI

# Maximum bytes of a complete reply, and of one event of a stream; 256 vectors of 3,072 numbers are 17 MB as text.
MAX_REPLY = 64_000_000
MAX_EVENT = 16_000_000
_EVENT_END = re.compile(rb"(?>\r\n|\r|\n){2}")
_DRAIN_S = 0.1  # seconds to read to the end after the last event, so that the connection can be reused


@cache
def tls_context() -> ssl.SSLContext:
    """Returns the TLS context that all clients of the process share, because loading the certificate authorities takes
    60 ms."""
    return httpx2.create_ssl_context()


class BoundedResponse(httpx2.Response):
    """A response with a size limit: MAX_REPLY bytes, or MAX_EVENT bytes per event. Reading more raises NotAnAPI."""

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
        size = 0
        async with aclosing(super().aiter_bytes(chunk_size)) as parts:
            async for part in parts:
                size += len(part)
                self._check("The reply", size, MAX_REPLY)
                yield part

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yields the data of each server-sent event before `[DONE]`."""
        pending = bytearray()
        async with aclosing(super().aiter_bytes()) as parts:
            async for part in parts:
                searched = max(0, len(pending) - 3)  # the end of an event may be split between two parts
                pending += part
                start = 0
                for end in [match.span() for match in _EVENT_END.finditer(pending, searched)]:
                    data = _data(bytes(pending[start : end[0]]))
                    start = end[1]
                    if data.startswith(b"[DONE]"):
                        with suppress(TimeoutError, httpx2.RequestError):
                            async with asyncio.timeout(_DRAIN_S):
                                async for _ in parts:
                                    pass
                        return
                    if data:
                        yield data
                del pending[:start]
                self._check("An event", len(pending), MAX_EVENT)

    def _check(self, what: str, size: int, most: int) -> None:
        if size > most:
            where = shown_url(str(self.url))
            raise NotAnAPI(f"{what} of {where} has over {most // 1_000_000} MB and is not read.")


def _data(event: bytes) -> bytes:
    """Returns the lines of data of a server-sent event, joined (HTML standard, 9.2.6)."""
    fields = [line.partition(b":") for line in event.splitlines()]
    return b"\n".join(value.removeprefix(b" ") for name, _, value in fields if name == b"data")


class Chunks(AsyncStream[ChatCompletionChunk]):
    """The chunks of a streamed answer. Raises errors of `openai`, ValueError if an event is not JSON, and NotAnAPI if
    an event is too large.

    `close` ends all generators that read from the connection; the stream of `openai` leaves that to the garbage
    collector.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._chunks = self._read()

    async def __anext__(self) -> ChatCompletionChunk:
        return await anext(self._chunks)

    async def close(self) -> None:
        await self._chunks.aclose()
        await super().close()

    async def _read(self) -> AsyncGenerator[ChatCompletionChunk, None]:
        assert isinstance(self.response, BoundedResponse)
        try:
            async with aclosing(self.response.events()) as events:
                async for data in events:
                    chunk = json.loads(data)
                    if error := chunk.get("error"):
                        message = error.get("message") if isinstance(error, dict) else None
                        request = self.response.request
                        raise openai.APIError(message or "An error occurred during streaming", request, body=error)
                    yield ChatCompletionChunk.construct(**chunk)
        except httpx2.TimeoutException as error:
            raise openai.APITimeoutError(request=self.response.request) from error
        except httpx2.RequestError as error:
            raise openai.APIConnectionError(request=self.response.request) from error


class _BoundedClient(DefaultAsyncHttpxClient):
    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Returns a BoundedResponse, which is read to its end unless `stream` is set."""
        plain = await super().send(request, stream=True, **options)
        response = BoundedResponse(
            plain.status_code,
            headers=plain.headers,
            stream=plain.stream,
            request=plain.request,
            extensions=plain.extensions,
            history=plain.history,
        )
        if not stream:
            try:
                await response.aread()
            except BaseException:
                await response.aclose()
                raise
        return response


def new_client(base_url: str, api_key: str | None, timeout_s: float) -> AsyncOpenAI:
    """Returns a client without its own retries (ResilientClient retries). Local servers need no key."""
    http = _BoundedClient(verify=tls_context())
    return AsyncOpenAI(base_url=base_url, api_key=api_key or "none", timeout=timeout_s, max_retries=0, http_client=http)
