"""A process that holds people's words in memory drops them when somebody is erased (M9)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from turnlog.agent.sessions.held import SUSPECT_S
from turnlog.events.log import Log
from turnlog.events.remembered import forget_all
from turnlog.events.subjects import watch_type_anywhere

TYPES = ("erased", "user_erased")


@contextlib.asynccontextmanager
async def forgetting(log: Log) -> AsyncIterator[None]:
    """Listens while the block runs. Forgets twice: what was being read meanwhile may be put back after the first."""
    again: set[asyncio.TimerHandle] = set()
    loop = asyncio.get_running_loop()

    async def hear(message: Msg) -> None:
        forget_all()
        for timer in again:
            timer.cancel()
        again.clear()
        again.add(loop.call_later(SUSPECT_S, forget_all))

    subs = []
    with contextlib.suppress(NatsError, OSError):  # closed already: whoever uses the log will say so
        subs = [await log.nc.subscribe(watch_type_anywhere(type_), cb=hear) for type_ in TYPES]
    try:
        yield
    finally:
        for timer in again:
            timer.cancel()
        for sub in subs:
            with contextlib.suppress(NatsError, OSError):  # it ended with its connection
                await sub.unsubscribe()
