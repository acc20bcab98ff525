"""Async methods that may be awaited in any event loop, and called without one: they run in the loop of their owner.

The owner is an object with connections, which belong to one event loop.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from turnlog.consumers.sync_bridge import LoopClosed, result_of
from turnlog.events.errors import TurnlogError

T = TypeVar("T")
P = ParamSpec("P")


class WrongThread(TurnlogError, asyncio.InvalidStateError):
    """A synchronous method was called where it would wait for itself, or its owner's event loop has ended."""

    code = "wrong-thread"


class HasLoop(Protocol):
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def is_closed(self) -> bool: ...


S = TypeVar("S", bound=HasLoop)


def in_own_loop(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        refuse_closed(self)
        if asyncio.get_running_loop() is self.loop:
            return await method(self, *args, **kwargs)
        return await awaited(self, method(self, *args, **kwargs))

    return call


def iterated_in_own_loop(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[S, P], AsyncIterator[T]]:
    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        refuse_closed(self)
        found = method(self, *args, **kwargs)
        if asyncio.get_running_loop() is self.loop:
            async for one in found:
                yield one
            return
        while (one_there := await awaited(self, following(found))) is not None:
            yield one_there

    return call


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], T]:
    """The method for threads without an event loop."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return waited_for(self, method(self, *args, **kwargs))

    return call


def iterated_blocking(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[S, P], Iterator[T]]:
    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        found = method(self, *args, **kwargs)
        while (one := waited_for(self, following(found))) is not None:
            yield one

    return call


async def awaited(owner: HasLoop, work: Coroutine[Any, Any, T]) -> T:
    """The result of work in the owner's loop, for another loop. Raises LoopClosed, WrongThread."""
    with _ended_by_closing(owner):
        return await asyncio.wrap_future(_submitted(owner, work))


def waited_for(owner: HasLoop, work: Coroutine[Any, Any, T]) -> T:
    """As awaited, for a thread without a loop. Raises WrongThread in the owner's own loop too."""
    with contextlib.suppress(RuntimeError):
        if asyncio.get_running_loop() is owner.loop:
            work.close()
            refuse_closed(owner)
            raise WrongThread(
                f"a synchronous call of {type(owner).__name__} in its own event loop would wait for itself; await the "
                "method whose name begins with `a`, or use `await graph.ainvoke(...)` instead of `graph.invoke(...)`"
            )
    with _ended_by_closing(owner):
        return result_of(_submitted(owner, work))


def _submitted(owner: HasLoop, work: Coroutine[Any, Any, T]) -> Future[T]:
    if owner.is_closed or not owner.loop.is_running():
        work.close()
        refuse_closed(owner)
        raise WrongThread(
            f"the event loop that this {type(owner).__name__} was made in does not run any more; open it again"
        )
    return asyncio.run_coroutine_threadsafe(work, owner.loop)


@contextlib.contextmanager
def _ended_by_closing(owner: HasLoop) -> Iterator[None]:
    """Calls that run when an `open` block ends are cancelled: they raise LoopClosed."""
    try:
        yield
    except (asyncio.CancelledError, CancelledError):
        refuse_closed(owner)
        raise


def refuse_closed(owner: HasLoop) -> None:
    """Raises LoopClosed."""
    if owner.is_closed:
        raise LoopClosed(f"this {type(owner).__name__} is closed: its `open` block has ended; open it again")


async def following(found: AsyncIterator[T]) -> T | None:
    """The next one; None at the end."""
    return await anext(found, None)
