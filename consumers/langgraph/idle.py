"""What a saver does between two turns, so that the next one need not."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

IDLE_S = 0.005  # without a call: between two calls of a graph that waits for nothing there is less


class Idle:
    """work: does one piece, and says whether there was one; begun once nothing has gone on for a while."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        self._calls = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """A call. One that fails may end with its event loop, so nothing is begun after it."""
        self._calls += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            yield
        finally:
            self._calls -= 1
        if not self._calls:
            self._later()

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._next)

    def _next(self) -> None:
        self._timer = None
        if self._work():
            self._later()
