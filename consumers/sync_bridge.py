"""Runs coroutines across event loops, and for callers without asyncio.

`LoopThread` is an event loop in its own thread. `Blocking` is a proxy whose async methods block. Two decorators run an
async method in its owner's loop: `in_own_loop` for callers in any event loop, `blocking` for threads without one.
"""

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError, wait
from concurrent.futures import TimeoutError as NotDoneInTime
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar

from turnlog.events.errors import TurnlogError

# A Ctrl-C just before a wait for a lock is noticed only after the wait, so long waits are split into waits this long.
LOOK_S = 0.5
CLOSED = "this memory is closed; open it again"
END_S = 5.0  # seconds for running calls when the loop is closed or a waiting caller is interrupted
T = TypeVar("T")
P = ParamSpec("P")
_END: Any = object()


class LoopClosed(TurnlogError):
    """An object was used after the block that it was opened in had ended."""

    code = "closed"


class Closed:
    """Replaces the resources of a closed memory: each attribute raises LoopClosed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise LoopClosed(CLOSED)


class WrongThread(TurnlogError, asyncio.InvalidStateError):
    """A synchronous method was called in its owner's event loop, where it would wait for itself, or that loop has
    ended."""

    code = "wrong-thread"


class LoopThread:
    """An event loop that runs in a daemon thread until close()."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        started = threading.Event()
        self.loop.call_soon(started.set)
        self._thread.start()
        started.wait()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs the coroutine in the loop and returns its result. Raises the coroutine's errors, LoopClosed,
        TimeoutError; RuntimeError in the loop's own thread.

        If the calling thread is interrupted (Ctrl-C) or the time runs out, the coroutine is cancelled first.
        """
        if self.loop.is_closed() or not self.loop.is_running():
            work.close()
            raise LoopClosed(CLOSED)
        if self.is_current():
            work.close()
            raise RuntimeError("a blocking call in the loop's own thread would wait for itself; await it there")
        return _result(self.loop, work, timeout_s)

    def call(self, function: Callable[[], object]) -> None:
        """Has the loop call the function, without waiting for it. Raises LoopClosed."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise LoopClosed(CLOSED) from None

    def is_current(self) -> bool:
        """Returns whether the caller runs in the loop's thread."""
        return threading.current_thread() is self._thread

    async def awaited(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine like `run`, for a caller in another event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def close(self) -> None:
        """Cancels the running work, waits END_S for it, and ends the thread."""
        with contextlib.suppress(NotDoneInTime):
            asyncio.run_coroutine_threadsafe(_cancel_the_others(), self.loop).result(2 * END_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_S)
        if not self._thread.is_alive():
            self.loop.close()


async def _cancel_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=END_S)


def _result(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Runs the work in the loop of another thread and returns its result. If this thread is interrupted or the time
    runs out, the work is cancelled first.

    Raises the work's errors, TimeoutError.
    """
    task: asyncio.Task[Any] | None = None
    is_cancelled = False

    async def run() -> T:
        nonlocal task
        if is_cancelled:  # cancelled before the loop began to run it
            work.close()
            raise asyncio.CancelledError
        task = asyncio.current_task()
        return await work

    def cancel() -> None:
        nonlocal is_cancelled
        is_cancelled = True
        if task is not None:
            task.cancel()

    future = asyncio.run_coroutine_threadsafe(run(), loop)
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    try:
        while not wait((future,), min(LOOK_S, max(0.0, until - time.monotonic()))).done:
            if time.monotonic() >= until:
                raise NotDoneInTime
        return future.result()
    except BaseException:
        if not future.done():
            loop.call_soon_threadsafe(cancel)
            with contextlib.suppress(BaseException):
                future.result(END_S)
        raise


class LoopBound:
    """Base class of objects whose coroutines must run in the loop that the object was made in. `Blocking` wraps such
    objects when a call returns them."""

    __slots__ = ()


class Blocking(Generic[T]):
    """A proxy of `target` without asyncio: coroutine methods block, async iterators become iterators, other attributes
    are unchanged."""

    def __init__(self, target: T, loop: LoopThread) -> None:
        self._target, self._loop = target, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return _bridged(value, self._loop)

        @functools.wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            return _bridged(value(*args, **kwargs), self._loop)

        return call

    def __dir__(self) -> list[str]:
        return dir(self._target)

    def __repr__(self) -> str:
        return repr(self._target)


class BlockingIterator(Blocking[Any]):
    """An iterator over an async iterator. Its other attributes behave as in `Blocking`."""

    def __init__(self, target: Any, loop: LoopThread) -> None:
        super().__init__(target, loop)
        self._items = _iterated(target, loop.run)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._items)

    def close(self) -> None:
        """Closes the async iterator."""
        self._items.close()


def _bridged(value: Any, loop: LoopThread) -> Any:
    if asyncio.iscoroutine(value):
        return _bridged(loop.run(value), loop)
    if isinstance(value, AsyncIterator):
        return BlockingIterator(value, loop) if isinstance(value, LoopBound) else _iterated(value, loop.run)
    return Blocking(value, loop) if isinstance(value, LoopBound) else value


def _iterated(items: AsyncIterator[T], run: Callable[[Coroutine[Any, Any, Any]], Any]) -> Generator[T]:
    """Yields the items; `run` waits for a coroutine. Closing this generator closes the async iterator."""
    try:
        while (item := run(_next(items))) is not _END:
            yield item
    finally:
        if (close := getattr(items, "aclose", None)) is not None:
            with contextlib.suppress(TurnlogError, RuntimeError):  # the iterator is still ending after an interruption
                run(close())


async def _next(items: AsyncIterator[T]) -> Any:
    return await anext(items, _END)


class HasLoop(Protocol):
    """An owner of connections, which belong to one event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def is_closed(self) -> bool: ...


S = TypeVar("S", bound=HasLoop)


def in_own_loop(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Wraps an async method so that callers in any event loop can await it; it runs in its owner's loop."""

    @functools.wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        refuse_closed(self)
        if asyncio.get_running_loop() is self.loop:
            return await method(self, *args, **kwargs)
        return await _awaited(self, method(self, *args, **kwargs))

    return call


def iterated_in_own_loop(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[S, P], AsyncIterator[T]]:
    """Wraps an async iterator as `in_own_loop` wraps a coroutine method: it runs in its owner's loop."""

    @functools.wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        refuse_closed(self)
        items = method(self, *args, **kwargs)
        if asyncio.get_running_loop() is self.loop:
            async for item in items:
                yield item
            return
        while (item_there := await _awaited(self, _next(items))) is not _END:
            yield item_there

    return call


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], T]:
    """Makes a blocking method from an async method, for threads without an event loop."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return waited_for(self, method(self, *args, **kwargs))

    return call


def iterated_blocking(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[S, P], Iterator[T]]:
    """Makes a blocking iterator from an async iterator, for threads without an event loop."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _iterated(method(self, *args, **kwargs), functools.partial(waited_for, self))

    return call


def waited_for(owner: HasLoop, work: Coroutine[Any, Any, T]) -> T:
    """Runs the work in the owner's loop and returns its result, for threads without a loop.

    Raises LoopClosed; WrongThread if called in the owner's loop, or if that loop has ended.
    """
    with contextlib.suppress(RuntimeError):
        if asyncio.get_running_loop() is owner.loop:
            work.close()
            refuse_closed(owner)
            raise WrongThread(
                f"a synchronous call of {type(owner).__name__} in its own event loop would wait for itself; await the "
                "method whose name begins with `a`, or use `await graph.ainvoke(...)` instead of `graph.invoke(...)`"
            )
    with _refused_when_over(owner, work):
        return _result(owner.loop, work)


async def _awaited(owner: HasLoop, work: Coroutine[Any, Any, T]) -> T:
    """Runs the work in the owner's loop and returns its result, for callers in another loop. Raises LoopClosed,
    WrongThread."""
    with _refused_when_over(owner, work):
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, owner.loop))


@contextlib.contextmanager
def _refused_when_over(owner: HasLoop, work: Coroutine[Any, Any, Any]) -> Iterator[None]:
    """Raises LoopClosed if the owner is closed, and WrongThread if its loop has ended. Work that is cancelled because
    its `open` block ends raises LoopClosed too."""
    if owner.is_closed or not owner.loop.is_running():
        work.close()
        refuse_closed(owner)
        raise WrongThread(
            f"the event loop that this {type(owner).__name__} was made in does not run any more; open it again"
        )
    try:
        yield
    except (asyncio.CancelledError, CancelledError):
        refuse_closed(owner)
        raise


def refuse_closed(owner: HasLoop) -> None:
    """Raises LoopClosed if the owner is closed."""
    if owner.is_closed:
        raise LoopClosed(f"this {type(owner).__name__} is closed: its `open` block has ended; open it again")
