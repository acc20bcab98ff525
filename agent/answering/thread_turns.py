"""Makes the answers of one conversation one after the other, so that each sees the earlier ones.

Requests of one process wait in the order in which they arrived. An advisory lock of Postgres admits one process at a
time; it ends with the connection of its process, so a killed process does not block others. Waiting requests are woken
by a message, and check again after LOOK_AGAIN_S because messages may be lost. The agent continues its answer when the
process that asked for it is killed, so requests wait for such an answer too.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
from psycopg_pool import PoolTimeout

from turnlog.agent import metrics
from turnlog.agent.access.throttle.fair_share import TooManyWaiting
from turnlog.agent.answering.request import FAILURE, answer_id
from turnlog.agent.conversations.locks import SharedLocks
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound, cause
from turnlog.events.subjects import THREAD_TURNS
from turnlog.projectors.engine.locks import LockFor

T = TypeVar("T")
WAITING = 20
LOOK_AGAIN_S = 1.0
logger = logging.getLogger("turnlog.throttle")


class _Queues(dict[str, deque[object]]):
    """The requests of this process by conversation; the first request of each may take the lock."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.locks = SharedLocks(runtime.pool)


async def nothing_instead() -> None:
    return None


@contextlib.asynccontextmanager
async def in_turn(
    runtime: Runtime,
    tenant: str,
    thread: str,
    patience_s: float,
    instead: Callable[[], Awaitable[T | None]] = nothing_instead,
) -> AsyncIterator[T | None]:
    """Runs the block after the earlier answers of the thread, and yields None.

    instead: called while the request waits, after each change of the thread; if it returns a value, the value is
    yielded at once, and the block runs without waiting for its turn. Raises TooManyWaiting if WAITING others wait
    already, or after patience_s.
    """
    queues, name = runtime.cached(_Queues), f"{tenant}/{thread}"
    queue, request = queues.setdefault(name, deque()), object()
    if len(queue) > WAITING:
        raise _refusal()
    queue.append(request)

    async def leave() -> None:
        queue.remove(request)
        if not queue:
            queues.pop(name, None)
        await tell_waiting(runtime, tenant, thread)

    async with contextlib.AsyncExitStack() as left:
        left.push_async_callback(leave)
        held = await left.enter_async_context(contextlib.AsyncExitStack())
        is_locked = False

        async def is_free() -> bool:
            nonlocal is_locked
            is_locked = is_locked or (queue[0] is request and await _locked(queues.locks, name, held))
            return is_locked and not await _is_answered_now(runtime, tenant, thread)

        try:
            async with asyncio.timeout(patience_s):
                other = await _wait(runtime, (tenant, thread), is_free, instead)
        except TimeoutError:
            raise _refusal() from None
        if other is not None:
            await left.aclose()
        yield other


@contextlib.asynccontextmanager
async def first_of(runtime: Runtime, tenant: str, name: str) -> AsyncIterator[None]:
    """Runs the block at once; calls of `in_turn` with the same name wait for it."""
    async with contextlib.AsyncExitStack() as held:
        held.push_async_callback(tell_waiting, runtime, tenant, name)
        await _locked(runtime.cached(_Queues).locks, f"{tenant}/{name}", held)
        yield


async def tell_waiting(runtime: Runtime, tenant: str, thread: str) -> None:
    """Wakes the requests that wait for their turn in the thread."""
    with contextlib.suppress(Exception):  # after a lost connection, they check again by themselves
        await runtime.log.nc.publish(THREAD_TURNS, f"{tenant}/{thread}".encode())


async def _wait(
    runtime: Runtime,
    place: tuple[str, str],
    is_free: Callable[[], Awaitable[bool]],
    instead: Callable[[], Awaitable[T | None]],
) -> T | None:
    if await is_free():
        return None
    async with _changes(runtime, "/".join(place)) as changed:
        while True:
            changed.clear()
            if await is_free():
                return None
            if (other := await instead()) is not None:
                return other
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await changed.wait()


async def _is_answered_now(runtime: Runtime, tenant: str, thread: str) -> bool:
    """Returns whether the agent may still be making its answer to the last question; False after the time limit of an
    answer."""
    seq = await runtime.log.thread_head(tenant, thread, "answer_requested")
    if not seq:
        return False
    try:
        asked_at = (await runtime.log.stored(seq, with_key=False)).stored_at
    except NotFound:  # erased
        return False
    if datetime.now(UTC) - asked_at > timedelta(seconds=runtime.settings.answer_timeout_s):
        return False
    stored = await runtime.log.stored_ids(tenant, thread, seq)
    requests = [id_ for id_, at in stored.items() if at == seq]
    return not any(answer_id(id_, end) in stored for id_ in requests for end in ("answer", FAILURE))


async def _locked(locks: SharedLocks, name: str, held: contextlib.AsyncExitStack) -> bool:
    """Takes the lock unless another process has it; returns whether it is taken. `held` releases it. Without Postgres,
    the order applies within this process only, because refusing the question would be worse for the user."""
    async with contextlib.AsyncExitStack() as attempt:
        try:
            is_ours = await attempt.enter_async_context(locks.lock(LockFor.THREAD_TURN, f"turn/{name}"))
        except (psycopg.OperationalError, PoolTimeout) as error:
            logger.warning("the order of answers holds in this process alone: %s", cause(error))
            return True
        if is_ours:
            held.push_async_exit(attempt.pop_all())
        return is_ours


@contextlib.asynccontextmanager
async def _changes(runtime: Runtime, name: str) -> AsyncIterator[asyncio.Event]:
    """Yields an event that every message about the conversation sets."""
    changed = asyncio.Event()

    async def hear(message: Any) -> None:
        if message.data == name.encode():
            changed.set()

    watching = await runtime.log.nc.subscribe(THREAD_TURNS, cb=hear)
    try:
        await runtime.log.nc.flush()
        yield changed
    finally:
        with contextlib.suppress(Exception):
            await watching.unsubscribe()


def _refusal() -> TooManyWaiting:
    metrics.WAITING_REFUSALS.labels("asks").inc()
    return TooManyWaiting("too many questions wait for the answers before them in this conversation; ask later")
