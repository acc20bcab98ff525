"""Waits for a stop event, and cancels tasks even if they swallow the cancellation.

In Python 3.11 asyncio.wait_for, which nats-py and psycopg_pool use, loses a cancellation that arrives together with the
result, so that a loop that was cancelled once could run forever.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
CANCEL_AGAIN_S = 0.1


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancels the tasks again and again until all have ended. Callers can still read their results and errors."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # reads the error, so that asyncio does not log it as never retrieved


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Waits until `seconds` have passed or `stop` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of the work. Raises TimeoutError after `timeout_s` seconds."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        await cancel(task)
    if task.cancelled():
        raise TimeoutError
    return task.result()
