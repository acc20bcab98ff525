"""Keeps copies of sessions in a JetStream key-value bucket. It is a cache: a failure counts as a miss."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import APIError, KeyNotFoundError
from nats.js.kv import KeyValue
from pydantic import TypeAdapter, ValidationError

from turnlog.agent.conversations.sessions.session_cache import SUSPECT_S
from turnlog.agent.conversations.sessions.tail import Copy
from turnlog.events.contracts import REMOVALS
from turnlog.events.log import Log
from turnlog.events.subjects import SESSION_BUCKET, STREAM, session_key, session_key_of, watch_type
from turnlog.projectors.models.sessions.state import VERSION, SessionState

TTL_S = 30 * 60.0
MAX_VALUE_BYTES = 900_000
MAX_BUCKET_BYTES = 256 * 1024 * 1024
PATIENCE_S, AWAY_S = 0.25, 2.0
OTHER_SETTINGS = 10058
logger = logging.getLogger("turnlog.sessions")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Value:
    """A copy in the form of the bucket. origin: the log and the projection version from which the copy was made; a copy
    with another origin is ignored."""

    origin: str
    through: int
    state: SessionState


_VALUES = TypeAdapter(_Value)


class Bucket:
    """The bucket of one tenant's sessions. After a failure, it is not used for AWAY_S."""

    def __init__(self, log: Log, tenant: str) -> None:
        self._log, self._tenant = log, tenant
        self._kv: KeyValue | None = None
        self._origin = ""
        self._away_until = 0.0

    async def open(self) -> None:
        """Creates the bucket if it does not exist."""
        await self._attempt(self._opened)

    async def read(self, thread: str) -> Copy | None:
        """Returns the copy; None if there is none, or if the bucket does not answer."""
        return await self._attempt(lambda: self._read(session_key(self._tenant, thread)))

    async def write(self, copy: Copy) -> None:
        """Stores the copy; a copy larger than MAX_VALUE_BYTES is not stored, and the key is purged.

        It may replace a newer copy of another process, because every reader completes a copy from the log.
        """
        await self._attempt(lambda: self._write(copy))

    async def purge(self, thread: str) -> None:
        await self._attempt(lambda: self._purge(session_key(self._tenant, thread)))

    async def purge_token(self, token: str) -> None:
        """Purges the copy of the thread with this token."""
        await self._attempt(lambda: self._purge(session_key_of(self._tenant, token)))

    async def _attempt(self, work: Callable[[], Awaitable[T]]) -> T | None:
        if time.monotonic() < self._away_until or not self._log.nc.is_connected:
            return None
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await work()
        except (NatsError, OSError, TimeoutError) as error:
            logger.info("the session bucket does not answer: %r", error)
            self._kv, self._away_until = None, time.monotonic() + AWAY_S
            return None

    async def _opened(self) -> KeyValue:
        if self._kv is None:
            js = self._log.nc.jetstream()
            stream = await js.stream_info(STREAM)
            self._origin = f"{stream.created} {VERSION}"
            config = KeyValueConfig(
                bucket=SESSION_BUCKET,
                description="turnlog: copies of sessions in use",
                history=1,
                ttl=TTL_S,
                max_bytes=MAX_BUCKET_BYTES,
                storage=StorageType.MEMORY,
                replicas=stream.config.num_replicas or 1,
            )
            try:
                self._kv = await js.create_key_value(config)
            except APIError as error:
                if error.err_code != OTHER_SETTINGS:
                    raise
                self._kv = await js.key_value(SESSION_BUCKET)
        return self._kv

    async def _read(self, key: str) -> Copy | None:
        kv = await self._opened()
        try:
            value = _VALUES.validate_json((await kv.get(key)).value or b"")
        except (KeyNotFoundError, ValidationError):  # copies of other versions are not valid
            return None
        return Copy(value.state, value.through) if value.origin == self._origin else None

    async def _write(self, copy: Copy) -> None:
        kv = await self._opened()
        assert copy.state is not None
        key = session_key(self._tenant, copy.state.thread)
        value = _VALUES.dump_json(_Value(self._origin, copy.through, copy.state))
        if len(value) > MAX_VALUE_BYTES:
            await kv.purge(key)
            return
        try:
            await kv.put(key, value)
        except APIError as error:  # the bucket is full; its other operations still work
            logger.info("a session was not stored in the bucket: %r", error)

    async def _purge(self, key: str) -> None:
        await (await self._opened()).purge(key)


class Removals:
    """Subscribes to removals of a tenant's threads and purges their copies, even if nobody reads them again.

    It purges twice, because a process that read the session just before the removal may store a copy after the first
    purge.
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
