"""Purges the bucket's copies of removed threads, even if their sessions are never read again (M9)."""

import asyncio
import contextlib

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from turnlog.agent.sessions.bucket import Bucket
from turnlog.agent.sessions.hot_copies import SUSPECT_S
from turnlog.events.contracts import REMOVALS
from turnlog.events.subjects import watch_type


class Removals:
    """Subscribes to the removals of a tenant's threads and purges their copies.

    It purges twice: a process that read the session just before the removal may store a copy after the first time.
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
            with contextlib.suppress(NatsError, OSError):  # the subscription ended with its connection
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
