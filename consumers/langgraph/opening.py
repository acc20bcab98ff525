"""A saver's surroundings: servers, tables, projectors; and an event loop of its own for scripts without one."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from turnlog.agent.settings import Settings, load_settings
from turnlog.consumers.runtime import Pool, opened, projecting
from turnlog.events.log import Log

END_S = 5.0  # for what is under way when a block ends
T = TypeVar("T")


@contextlib.asynccontextmanager
async def opened_for(
    settings: Settings | None, tenant: str | None, project: bool
) -> AsyncIterator[tuple[Log, Pool, str]]:
    """(log, pool, tenant). project: run the projectors here; where another process does, these stand by."""
    chosen = settings or load_settings()
    async with opened(chosen, "turnlog-langgraph") as runtime, contextlib.AsyncExitStack() as stack:
        if project:
            await stack.enter_async_context(projecting(runtime))
        yield runtime.log, runtime.pool, tenant or chosen.tenant


@contextlib.contextmanager
def in_background(work: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Holds an async context open in a thread with an event loop, which ends with the block, and with it what is still
    under way there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="turnlog-langgraph", daemon=True)
    thread.start()
    try:
        value = asyncio.run_coroutine_threadsafe(work.__aenter__(), loop).result()
        try:
            yield value
        finally:
            asyncio.run_coroutine_threadsafe(work.__aexit__(None, None, None), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(_end_the_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=END_S)
