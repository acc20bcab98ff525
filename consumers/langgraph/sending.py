"""Puts go to the log in the order they were made, those that wait together at once."""

import asyncio
from collections.abc import Callable

from turnlog.consumers.langgraph.held import Held, Put
from turnlog.events.contracts import Event
from turnlog.events.errors import EventTooLarge, InvalidEvent, TurnlogError
from turnlog.events.log import Log

STEPS_ASIDE = 6


class NotWritten(TurnlogError):
    """A write before this one failed, and this one builds on it."""

    code = "not-written"


class Sender:
    """What follows a failed put refers to it, so it fails too, and the thread is read anew."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def put(self, held: Held, events: list[Event], done: Callable[[], None]) -> "asyncio.Future[None]":
        """done: called when the events are stored, before the future is."""
        put = Put(events, done, asyncio.get_running_loop().create_future())
        held.queue.append(put)
        if held.sender is None or held.sender.done():
            held.sender = asyncio.create_task(self._send(held))
        return put.future

    async def _send(self, held: Held) -> None:
        while held.queue:
            await _others()
            async with held.lock:
                batch, held.queue = held.queue, []
                held.sending = True
                try:
                    await self._batch(held, batch)
                finally:
                    held.sending = False
                    held.stir()

    async def _batch(self, held: Held, batch: list[Put]) -> None:
        try:
            await self._log.append_in_order([event for put in batch for event in put.events])
        except (InvalidEvent, EventTooLarge) as error:  # nothing was sent: one of them is at fault
            if len(batch) == 1:
                _fail(held, batch, error)
            else:
                await self._one_by_one(held, batch)
        except Exception as error:  # handed to the callers, who wait for it
            _fail(held, batch, error)
        else:
            for put in batch:
                held.count(put.events)
                put.done()
                if not put.future.done():
                    put.future.set_result(None)

    async def _one_by_one(self, held: Held, batch: list[Put]) -> None:
        for at, put in enumerate(batch):
            await self._batch(held, [put])
            if put.future.done() and not put.future.cancelled() and (error := put.future.exception()) is not None:
                _fail(held, batch[at + 1 :], _behind(held, error))
                return


async def _others() -> None:
    """Lets those go on who waited for the batch before: a graph's next put is a few steps of the loop away."""
    for _ in range(STEPS_ASIDE):
        await asyncio.sleep(0)


def _fail(held: Held, batch: list[Put], error: Exception) -> None:
    held.begin(None)
    held.failures += 1
    behind, held.queue = held.queue, []
    for put in batch:
        if not put.future.done():
            put.future.set_exception(error)
    for put in behind:
        if not put.future.done():
            put.future.set_exception(_behind(held, error))


def _behind(held: Held, error: BaseException) -> NotWritten:
    return NotWritten(f"a write to thread {held.thread!r} before this one failed: {error}. Run it again")
