"""Opens a saver's servers, tables and projectors, and an event loop for scripts without one."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import psycopg

from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings, application_settings
from turnlog.consumers.runtime import in_own_thread, opened, projecting
from turnlog.consumers.sync_bridge import LoopThread
from turnlog.events.errors import DatabaseUnavailable
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection

T = TypeVar("T")


@contextlib.asynccontextmanager
async def opened_for(
    settings: Settings | None, tenant: str | None, project: bool
) -> AsyncIterator[tuple[Log, Pool, str]]:
    """Yields (log, pool, tenant). project: whether to run the projectors here; they stand by while another process runs
    them.
    """
    chosen = settings or application_settings()
    async with opened(chosen, "turnlog-langgraph") as runtime, contextlib.AsyncExitStack() as stack:
        if project:
            await stack.enter_async_context(in_own_thread(runtime, projecting))
        yield runtime.log, runtime.pool, tenant or chosen.tenant


@contextlib.contextmanager
def in_background(work: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Holds an async context open in a thread with its own event loop; at the end of the block, both end, with all
    tasks.
    """
    thread = LoopThread("turnlog-langgraph")
    try:
        value = thread.run(work.__aenter__())
        try:
            yield value
        finally:
            thread.run(work.__aexit__(None, None, None))
    finally:
        thread.close()


@contextlib.asynccontextmanager
async def connection(pool: Pool) -> AsyncIterator[Connection]:
    """Yields a connection of the pool. Raises DatabaseUnavailable if Postgres is or becomes unavailable."""
    try:
        async with pool.connection() as conn:
            yield conn
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise DatabaseUnavailable(
            f"Postgres does not answer: {str(error).strip()}. Check DATABASE_URL, or start it with `turnlog up`"
        ) from error
