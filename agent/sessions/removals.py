"""A removed thread leaves nothing in the bucket, also when nobody reads its session again (M9)."""

import asyncio
import contextlib

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from turnlog.agent.sessions.bucket import Bucket
from turnlog.agent.sessions.held import SUSPECT_S
from turnlog.events.subjects import watch_type
from turnlog.projectors.projection import REMOVALS


class Removals:
    """Listens to the removals of a tenant's threads and purges their copies.

    Twice: who had read the session just before the removal was stored may put a copy after the first time.
    """

    def __init__(self, nc: Client, tenant: str, bucket: Bucket) -> None:
        self._nc, self._tenant, self._bucket = nc, tenant, bucket
        self._subs: list[Subscription] = []
        self._purging: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for type_ in sorted(REMOVALS):
            self._subs.append(await self._nc.subscribe(watch_type(self._tenant, type_), cb=self._hear))

    async def close(self) -> None:
        for sub in self._subs:
            with contextlib.suppress(NatsError, OSError):  # it ended with its connection
                await sub.unsubscribe()
        for task in self._purging:
            task.cancel()

    async def _hear(self, msg: Msg) -> None:
        task = asyncio.create_task(self._purge(msg.subject.split(".")[2]))
        self._purging.add(task)
        task.add_done_callback(self._purging.discard)

    async def _purge(self, token: str) -> None:
        await self._bucket.purge_token(token)
        await asyncio.sleep(SUSPECT_S)
        await self._bucket.purge_token(token)
