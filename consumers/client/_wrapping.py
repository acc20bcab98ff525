"""turnlog.wrap(): an OpenAI client whose chat completions read from a thread and are recorded on it."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from turnlog._memory import Memory
from turnlog._recording import Exchange, as_sent, begun
from turnlog.agent.answering.client_tasks import is_client_task
from turnlog.consumers.sync_bridge import Blocking, LoopClosed, LoopThread
from turnlog.events.errors import TurnlogError

Client = TypeVar("Client")


class WrongClient(TurnlogError):
    """The client and the memory do not match: both must use asyncio, or neither."""

    code = "wrong-client"


def wrap(
    client: Client,
    *,
    memory: Memory | Blocking[Memory],
    thread: str,
    user: str | None = None,
    tokens: int | None = None,
) -> Client:
    """Returns the client with a memory: `client.chat.completions.create(...)` sends the thread's context before the new
    messages, and stores the new messages and the answer, streamed or not, with its receipt in the thread.

    client: an openai.AsyncOpenAI with the memory of `async with turnlog.open()`, or an openai.OpenAI with the memory of
    `with`. Everything else about the client is unchanged. tokens: maximum tokens of all messages, by default the
    model's window.

    messages: only those that the thread lacks at its end are stored, so a caller may send only the new message or the
    whole history each time. Leading system messages are sent but not stored. A failed request leaves the user's message
    on the thread, without an answer; of a stream that is left early, the received part is recorded. With n > 1 the
    first choice is recorded. Prompts that chat programs send by themselves (titles, tags) are passed on but not stored.

    Concurrent calls in one thread are answered in order, each with the answers before it; a stream lasts until it ends,
    is closed or is no longer referenced. A second call for the same last message does not wait, and its answer goes to
    a fork. `create` raises TooManyWaiting if 20 others are waiting, or after TURNLOG_ANSWER_TIMEOUT. With
    `turnlog.connect`, only calls of this program are ordered, without such limits. Raises WrongClient.
    """
    import openai

    is_async = isinstance(client, openai.AsyncOpenAI)
    if is_async == isinstance(memory, Blocking):
        here, there = ("async with", "openai.AsyncOpenAI") if not is_async else ("with", "openai.OpenAI")
        raise WrongClient(
            f"this {type(client).__name__} does not fit a memory of `{here} turnlog.open()`; use {there} there"
        )
    make: Callable[[Any], Any]
    if isinstance(memory, Blocking):
        under_way, conversation = memory._target.exchanges, memory._target.thread(thread, user)
        make = _blocking_create(lambda arguments: begun(under_way, conversation, arguments, tokens), memory._loop)
    else:
        under_way, conversation = memory.exchanges, memory.thread(thread, user)
        make = _create(lambda arguments: begun(under_way, conversation, arguments, tokens))
    original: Any = client
    completions = _Changed(original.chat.completions, create=make(original.chat.completions.create))
    return cast(Client, _Changed(client, chat=_Changed(original.chat, completions=completions)))


class _Changed:
    """A proxy of an object with some attributes replaced."""

    def __init__(self, original: Any, **replaced: Any) -> None:
        self._original = original
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __repr__(self) -> str:
        return repr(self._original)


Begin = Callable[[Mapping[str, Any]], Any]


def _create(begin: Begin) -> Callable[[Any], Any]:
    def around(original: Any) -> Any:
        async def create(*, messages: Sequence[Mapping[str, Any]], **arguments: Any) -> Any:
            sent = as_sent(messages)
            if is_client_task(sent):
                return await original(messages=sent, **arguments)
            exchange: Exchange = await begin({**arguments, "messages": sent})
            try:
                reply = await original(messages=exchange.messages, **arguments)
            except BaseException:
                exchange.fail()
                raise
            if arguments.get("stream"):
                return AsyncRecorded(reply, exchange)
            exchange.take_whole(reply)
            await exchange.end()
            return reply

        return create

    return around


def _blocking_create(begin: Begin, loop: LoopThread) -> Callable[[Any], Any]:
    def around(original: Any) -> Any:
        def create(*, messages: Sequence[Mapping[str, Any]], **arguments: Any) -> Any:
            sent = as_sent(messages)
            if is_client_task(sent):
                return original(messages=sent, **arguments)
            exchange: Exchange = loop.run(begin({**arguments, "messages": sent}))
            try:
                reply = original(messages=exchange.messages, **arguments)
            except BaseException:
                loop.call(exchange.fail)
                raise
            if arguments.get("stream"):
                return Recorded(reply, exchange, loop)
            exchange.take_whole(reply)
            loop.run(exchange.end())
            return reply

        return create

    return around


class AsyncRecorded(_Changed):
    """An openai.AsyncStream whose answer is recorded at its end. If the stream is closed, cancelled or no longer
    referenced, the received part is recorded; if it fails, nothing is."""

    def __init__(self, stream: Any, exchange: Exchange) -> None:
        super().__init__(stream)
        self._chunks, self._exchange = aiter(stream), exchange
        weakref.finalize(self, _left, asyncio.get_running_loop(), exchange, stream.close).atexit = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            await self._exchange.end()
            raise
        except asyncio.CancelledError:  # does not wait, because the caller's cancel scope would cancel every wait
            self._exchange.leave(self._original.close)
            raise
        except BaseException:
            self._exchange.fail()
            raise
        self._exchange.heard.take(chunk)
        return chunk

    async def __aenter__(self) -> "AsyncRecorded":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._exchange.end()
        await self._original.close()


class Recorded(_Changed):
    """An openai.Stream whose answer is recorded as by AsyncRecorded."""

    def __init__(self, stream: Any, exchange: Exchange, loop: LoopThread) -> None:
        super().__init__(stream)
        self._chunks, self._exchange, self._loop = iter(stream), exchange, loop
        weakref.finalize(self, _blocking_left, loop, exchange, stream.close).atexit = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            chunk = next(self._chunks)
        except StopIteration:
            self._loop.run(self._exchange.end())
            raise
        except BaseException:
            self._loop.call(self._exchange.fail)
            raise
        self._exchange.heard.take(chunk)
        return chunk

    def __enter__(self) -> "Recorded":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.run(self._exchange.end())
        self._original.close()


# Python calls this when the stream is no longer referenced, in any thread.
def _left(loop: asyncio.AbstractEventLoop, exchange: Exchange, close: Callable[[], Any]) -> None:
    with contextlib.suppress(
        RuntimeError
    ):  # the loop is closed; the memory was closed before, and has recorded the received part of the answer
        loop.call_soon_threadsafe(exchange.leave, close)


def _blocking_left(loop: LoopThread, exchange: Exchange, close: Callable[[], Any]) -> None:
    with contextlib.suppress(LoopClosed):
        loop.call(exchange.leave)
        if not loop.is_current():
            loop.run(exchange.end())
    close()
