"""turnlog.wrap(): an OpenAI client whose chat completions read from a thread and are recorded on it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from turnlog._memory import Memory
from turnlog._recording import Exchange, Heard, begun
from turnlog.consumers.own_loop import Blocking, LoopThread
from turnlog.events.errors import TurnlogError

Client = TypeVar("Client")


class WrongClient(TurnlogError):
    """The client and the memory are not of one kind: both with asyncio, or both without."""

    code = "wrong-client"


def wrap(
    client: Client,
    *,
    memory: Memory | Blocking[Memory],
    thread: str,
    user: str | None = None,
    tokens: int | None = None,
) -> Client:
    """The client with a memory: `client.chat.completions.create(...)` gets the thread's context before the new messages
    and the thread gets the new messages and the answer, streamed or not, with its receipt.

    client: an openai.AsyncOpenAI with the memory of `async with turnlog.open()`, or an openai.OpenAI with that of
    `with`. Everything else of it is untouched. tokens: at most so many for all messages, the model's window by default.

    messages: only what the thread does not end with is stored, so a caller may send the new message alone or the whole
    history each time. Leading system messages are sent and not stored. A request that fails leaves the user's message
    on the thread and no answer; a stream that is closed early is recorded as far as it came. With n > 1 the first
    choice is recorded. Raises WrongClient.
    """
    import openai

    is_async = isinstance(client, openai.AsyncOpenAI)
    if is_async == isinstance(memory, Blocking):
        here, there = ("async with", "openai.AsyncOpenAI") if not is_async else ("with", "openai.OpenAI")
        raise WrongClient(f"this {type(client).__name__} fits no memory of `{here} turnlog.open()`; use {there} there")
    make: Callable[[Any], Any]
    if isinstance(memory, Blocking):
        place = memory._target.thread(thread, user)
        make = _blocking_create(lambda arguments: begun(place, arguments, tokens), memory._loop)
    else:
        place = memory.thread(thread, user)
        make = _create(lambda arguments: begun(place, arguments, tokens))
    original: Any = client
    completions = _Changed(original.chat.completions, create=make(original.chat.completions.create))
    return cast(Client, _Changed(client, chat=_Changed(original.chat, completions=completions)))


class _Changed:
    """An object with some attributes replaced."""

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
            exchange: Exchange = await begin({**arguments, "messages": messages})
            reply = await original(messages=exchange.messages, **arguments)
            if arguments.get("stream"):
                return AsyncRecorded(reply, exchange)
            await exchange.end(Heard.of_completion(reply))
            return reply

        return create

    return around


def _blocking_create(begin: Begin, loop: LoopThread) -> Callable[[Any], Any]:
    def around(original: Any) -> Any:
        def create(*, messages: Sequence[Mapping[str, Any]], **arguments: Any) -> Any:
            exchange: Exchange = loop.run(begin({**arguments, "messages": messages}))
            reply = original(messages=exchange.messages, **arguments)
            if arguments.get("stream"):
                return Recorded(reply, exchange, loop)
            loop.run(exchange.end(Heard.of_completion(reply)))
            return reply

        return create

    return around


# Functions, not methods: without a reference to the stream's object a loop that breaks off ends the generator at once.
async def _recorded_async(stream: Any, exchange: Exchange) -> AsyncGenerator[Any, None]:
    heard = Heard()
    try:
        async for chunk in stream:
            heard.add(chunk)
            yield chunk
    except GeneratorExit:
        await exchange.end(heard)
        raise
    await exchange.end(heard)


def _recorded(stream: Any, exchange: Exchange, loop: LoopThread) -> Generator[Any, None, None]:
    heard = Heard()
    try:
        for chunk in stream:
            heard.add(chunk)
            yield chunk
    except GeneratorExit:
        loop.run(exchange.end(heard))
        raise
    loop.run(exchange.end(heard))


class AsyncRecorded(_Changed):
    """An openai.AsyncStream whose answer is recorded when it ends or is closed, not when it fails."""

    def __init__(self, stream: Any, exchange: Exchange) -> None:
        super().__init__(stream)
        self._chunks = _recorded_async(stream, exchange)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._chunks)

    async def __aenter__(self) -> "AsyncRecorded":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._chunks.aclose()
        await self._original.close()


class Recorded(_Changed):
    """An openai.Stream whose answer is recorded when it ends or is closed, not when it fails."""

    def __init__(self, stream: Any, exchange: Exchange, loop: LoopThread) -> None:
        super().__init__(stream)
        self._chunks = _recorded(stream, exchange, loop)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._chunks)

    def __enter__(self) -> "Recorded":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._chunks.close()
        self._original.close()
