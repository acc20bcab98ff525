"""Groups calls that wait at the same time into one round trip.

LangGraph's AsyncBatchedBaseStore groups too, but a bad call fails all that came with it, its methods can be awaited in
one event loop only, reads wait for writes, and it cannot be closed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sized
from itertools import accumulate
from typing import Generic, TypeVar

from turnlog.events.append import MAX_BATCH

In = TypeVar("In", bound=Sized)
Out = TypeVar("Out")


class Grouped(Generic[In, Out]):
    """Passes all calls that wait to `run`, in the order they came; calls that come meanwhile wait for the next run.

    at_once: so many runs at a time. at_most: operations of all calls in a run together, so that one atomic batch of the
    log holds them; a call is never divided. run returns one result for each call, or raises: then all of them fail.
    """

    def __init__(
        self, run: Callable[[list[In]], Awaitable[list[Out]]], at_once: int = 1, at_most: int = MAX_BATCH
    ) -> None:
        self._run, self._at_once, self._at_most = run, at_once, at_most
        self._waiting: list[tuple[In, asyncio.Future[Out]]] = []
        self._workers: set[asyncio.Task[None]] = set()

    async def do(self, one: In) -> Out:
        future: asyncio.Future[Out] = asyncio.get_running_loop().create_future()
        self._waiting.append((one, future))
        if len(self._workers) < self._at_once:
            self._workers.add(asyncio.create_task(self._work()))
        return await future

    async def idle(self) -> None:
        """Waits until all calls are done."""
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while self._waiting:
                count = self._fitting()
                taken, self._waiting = self._waiting[:count], self._waiting[count:]
                await self._run_for([(one, future) for one, future in taken if not future.done()])
        finally:  # in the same step in which it saw that nothing waits: do() must not count on it
            self._workers = {worker for worker in self._workers if worker is not asyncio.current_task()}

    def _fitting(self) -> int:
        """Returns how many of the first calls fit into a run; at least one."""
        sizes = accumulate(len(one) for one, _ in self._waiting)
        return max(1, sum(1 for size in sizes if size <= self._at_most))

    async def _run_for(self, asked: list[tuple[In, "asyncio.Future[Out]"]]) -> None:
        """Runs the calls, without those of callers that were cancelled."""
        futures = [future for _, future in asked]
        try:
            results = await self._run([one for one, _ in asked])
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        except Exception as error:  # handed to the callers, who wait for it
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        else:
            for future, result in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(result)
