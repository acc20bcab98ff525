"""Waits for a stop, and cancels tasks even if they swallow the cancellation.

asyncio.wait_for of Python 3.11, which nats-py and psycopg_pool use, drops a cancellation that arrives together with its
result: a loop that was cancelled once then runs for ever.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
CANCEL_AGAIN_S = 0.1


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancels the tasks until they have ended. Their results and errors are left in them."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not log it as never retrieved


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Waits until `seconds` have passed or stop is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of the work. Raises TimeoutError."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        await cancel(task)
    if task.cancelled():
        raise TimeoutError
    return task.result()
