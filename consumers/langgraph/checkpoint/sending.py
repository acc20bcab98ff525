"""Sends puts to the log in order; puts that wait at the same time are appended together."""

import asyncio
from collections.abc import Callable
from typing import Self

from turnlog.consumers.langgraph.checkpoint.held_threads import HeldThread, Put
from turnlog.events.contracts import Event
from turnlog.events.errors import EventTooLarge, InvalidEvent, TurnlogError
from turnlog.events.log import Log


class NotWritten(TurnlogError):
    """An earlier write failed, and this one builds on it."""

    code = "not-written"

    @classmethod
    def after_failure(cls, thread: str) -> Self:
        return cls(f"writes to thread {thread!r} build on one that failed; run it again")

    @classmethod
    def after_deletion(cls, thread: str) -> Self:
        return cls(
            f"thread {thread!r} was deleted after this run began, so nothing more of the run is stored. "
            "A new run begins the thread anew"
        )


class Sender:
    """Sends puts in order. Puts after a failed one build on it, so they fail too, and the thread is read again."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def put(
        self, held: HeldThread, events: list[Event], done: Callable[[], None], deletion: int | None = None
    ) -> "asyncio.Future[None]":
        """Queues events. done: called when they are stored, before the future gets its result.

        The future raises WrongExpectedVersion if the thread was deleted again after the given deletion.
        """
        put = Put(events, done, asyncio.get_running_loop().create_future(), deletion)
        held.queue.append(put)
        if not held.is_sending:
            held.sender = asyncio.create_task(self._send(held))
        return put.future

    async def _send(self, held: HeldThread) -> None:
        while held.queue:
            async with held.lock:
                batch, held.queue = held.queue, []
                try:
                    await self._batch(held, batch)
                finally:
                    held.stir()

    async def _batch(self, held: HeldThread, batch: list[Put]) -> None:
        if len({put.deletion for put in batch}) > 1:
            await self._one_by_one(held, batch)
            return
        try:
            await self._log.append_in_order([event for put in batch for event in put.events], batch[0].deletion)
        except (InvalidEvent, EventTooLarge) as error:  # nothing was sent, because one of the puts is invalid
            if len(batch) == 1:
                _fail(held, batch, error)
            else:
                await self._one_by_one(held, batch)
        except Exception as error:  # passed to the waiting callers
            _fail(held, batch, error)
        else:
            for put in batch:
                held.count(put.events)
                put.done()
                if not put.future.done():
                    put.future.set_result(None)

    async def _one_by_one(self, held: HeldThread, batch: list[Put]) -> None:
        for at, put in enumerate(batch):
            await self._batch(held, [put])
            if put.future.done() and not put.future.cancelled() and (error := put.future.exception()) is not None:
                _fail(held, batch[at + 1 :], _behind(held, error))
                return


def _fail(held: HeldThread, batch: list[Put], error: Exception) -> None:
    held.begin(None)
    held.failures += 1
    behind, held.queue = held.queue, []
    for put in batch:
        if not put.future.done():
            put.future.set_exception(error)
    for put in behind:
        if not put.future.done():
            put.future.set_exception(_behind(held, error))


def _behind(held: HeldThread, error: BaseException) -> NotWritten:
    return NotWritten(f"a write to thread {held.thread!r} before this one failed: {error}. Run it again")
