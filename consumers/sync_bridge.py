"""An event loop in a thread of its own, and objects with async methods for callers without asyncio.

One bridge for every object: what it returns is what its async methods return, blocking, and its async iterators are
plain ones.
"""

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NotDoneInTime
from typing import Any, Generic, TypeVar, cast

from turnlog.events.errors import TurnlogError

# A Ctrl-C that comes just before a lock is waited for does not end that wait; it is noticed when the wait is over.
LOOK_S = 0.5
CLOSED = "this turnlog is closed: its `with` block has ended; open it again"
END_S = 5.0  # for what is under way when the loop is closed, or when a waiting caller is interrupted
T = TypeVar("T")
_END: Any = object()


class LoopClosed(TurnlogError):
    """An object was used after the block that it was opened in had ended."""

    code = "closed"


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
        """Waits for the coroutine's result. Raises what it raises, LoopClosed, TimeoutError.

        When the waiting thread is interrupted (Ctrl-C), or the time is over, the coroutine is cancelled first.
        """
        if self.loop.is_closed() or not self.loop.is_running():
            work.close()
            raise LoopClosed(CLOSED)
        if self.is_current():
            work.close()
            raise RuntimeError("a blocking call in the loop's own thread would wait for itself; await it there")
        task = _Task(work)
        future = asyncio.run_coroutine_threadsafe(task.run(), self.loop)
        try:
            return result_of(future, timeout_s)
        except BaseException:
            if not future.done():
                self.loop.call_soon_threadsafe(task.cancel)
                _wait(future)
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Has the loop call it, and does not wait. Raises LoopClosed."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise LoopClosed(CLOSED) from None

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    async def awaited(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a caller in another event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def close(self) -> None:
        """Cancels what is under way, waits END_S for it, and ends the thread."""
        with contextlib.suppress(NotDoneInTime):
            asyncio.run_coroutine_threadsafe(_cancel_the_others(), self.loop).result(2 * END_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_S)
        if not self._thread.is_alive():
            self.loop.close()


class _Task(Generic[T]):
    """A coroutine that can be cancelled and waited for until its cleanup is over."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work, self._task = work, cast("asyncio.Task[Any] | None", None)
        self._is_cancelled = False

    async def run(self) -> T:
        if self._is_cancelled:
            self._work.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._work

    def cancel(self) -> None:
        """Cancels the coroutine, also before the loop has begun to run it."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


def result_of(future: "Future[T]", timeout_s: float | None = None) -> T:
    """As future.result(), but a Ctrl-C always ends it. Raises what the work raises, TimeoutError."""
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not wait((future,), min(LOOK_S, max(0.0, until - time.monotonic()))).done:
        if time.monotonic() >= until:
            raise NotDoneInTime
    return future.result()


def _wait(future: "Future[Any]") -> None:
    with contextlib.suppress(BaseException):
        future.result(END_S)


async def _cancel_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=END_S)


class LoopBound:
    """An object whose coroutines run in the event loop that it was made in. `Blocking` wraps those that it returns."""

    __slots__ = ()


class Blocking(Generic[T]):
    """`target` without asyncio: coroutine methods block, async iterators are iterators, all else is as it is."""

    def __init__(self, target: T, loop: LoopThread) -> None:
        self._target, self._loop = target, loop

    def __getattr__(self, name: str) -> Any:
        return _bridged(getattr(self._target, name), self._loop)

    def __dir__(self) -> list[str]:
        return dir(self._target)

    def __repr__(self) -> str:
        return repr(self._target)


def _bridged(value: Any, loop: LoopThread) -> Any:
    if not callable(value):
        return _given(value, loop)

    @functools.wraps(value)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _given(value(*args, **kwargs), loop)

    return call


def _given(value: Any, loop: LoopThread) -> Any:
    if asyncio.iscoroutine(value):
        return _given(loop.run(value), loop)
    if isinstance(value, AsyncIterator):
        return _iterated(value, loop)
    return Blocking(value, loop) if isinstance(value, LoopBound) else value


def _iterated(found: AsyncIterator[T], loop: LoopThread) -> Iterator[T]:
    """Closing it closes the async iterator."""
    try:
        while (one := loop.run(_next(found))) is not _END:
            yield cast(T, one)
    finally:
        if (close := getattr(found, "aclose", None)) is not None:
            with contextlib.suppress(LoopClosed, RuntimeError):  # it is still ending after an interruption
                loop.run(close())


async def _next(found: AsyncIterator[T]) -> Any:
    return await anext(found, _END)
