"""Creates durable consumers of the log, updates their settings, and recreates deleted consumers at the last recorded
position.

Events that were acknowledged after the last recorded position are delivered again. This changes nothing, because the
ids of a worker's results derive from the event.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from turnlog.agent.runtime import Pool
from turnlog.consumers.workers.durable_consumer import DurableConsumer
from turnlog.events.errors import LogUnavailable, cause
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine.writer import Connection

logger = logging.getLogger("turnlog.consumers")
MAX_WAITING, MAX_WAITING_BODIES = 2_000, 100
PATIENCE_S = 60.0
LOOK_S = 5.0
MISSING = "its durable consumer is missing"

_NOTE = """
INSERT INTO durables AS d (name, log, position) VALUES (%s, %s, %s)
ON CONFLICT (name, log) DO UPDATE SET position = greatest(d.position, excluded.position)"""
_NOTED = "SELECT position FROM durables WHERE name = %s AND log = %s"


@dataclass(slots=True)
class Durable:
    """The consumer in JetStream that delivers to a DurableConsumer.

    subject: the stored events to deliver. deliver: where a new durable begins. pulls: the heartbeat of its fetching
    loop; None before the loop runs. made: how often this process has created the durable.
    """

    consumer: DurableConsumer
    subject: str
    deliver: DeliverPolicy
    pool: Pool
    js: JetStreamContext
    pulls: Heartbeat | None = None
    made: int = 0
    _noted: int = 0
    _taken: tuple[int, ...] = ()
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ensure(self) -> ConsumerInfo:
        """Creates the durable, or updates its settings without changing its position.

        Raises NATS errors and psycopg errors.
        """
        async with self._lock:
            try:
                info = await self.js.consumer_info(STREAM, self.consumer.name)
            except NotFoundError:
                return await self._create()
            wanted = info.config.evolve(**self._settings())
            return info if info.config == wanted else await self.js.add_consumer(STREAM, wanted)

    async def ensure_in_time(self) -> None:
        """Calls `ensure` until it succeeds, for up to PATIENCE_S. Raises LogUnavailable."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                await self.ensure()
                return
            except (NatsError, psycopg.Error, OSError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise LogUnavailable(f"cannot check the consumer {self.consumer.name}: {cause(error)}") from error
                await asyncio.sleep(1.0)

    async def look(self) -> str | None:
        """Recreates a missing durable and records its position; returns why its work is stuck, or None."""
        made = self.made
        try:
            info = await self.ensure()
            await self._note(info)
        except (NatsError, psycopg.Error, OSError, TimeoutError) as error:
            return f"cannot check its durable consumer: {cause(error)}"
        if self.made > made:
            return MISSING
        before, self._taken = self._taken, self._waiting(info)
        return (
            f"{info.num_pending:,} events are waiting, and none is taken"
            if self._taken and self._taken == before
            else None
        )

    async def _create(self) -> ConsumerInfo:
        async with self._positions() as conn:
            row = await (await conn.execute(_NOTED, (self.consumer.name, await self._log()))).fetchone()
            position = self._noted = int(row[0]) if row else 0
            begins: dict[str, Any] = {"deliver_policy": self.deliver}
            if position:
                begins = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": position + 1}
            config = ConsumerConfig(
                name=self.consumer.name,
                durable_name=self.consumer.name,
                filter_subject=self.subject,
                ack_policy=AckPolicy.EXPLICIT,
                max_deliver=-1,
                **begins,
                **self._settings(),
            )
            info = await self.js.add_consumer(STREAM, config)
        self.made += 1
        if self.made > 1 or position:
            logger.warning(
                "the consumer %s was deleted and is recreated after sequence %d", self.consumer.name, position
            )
        return info

    def _settings(self) -> dict[str, Any]:
        """Returns the settings that a new durable gets and an existing durable is updated to."""
        return {
            "ack_wait": self.consumer.ack_wait_s,
            "max_ack_pending": MAX_WAITING_BODIES if self.consumer.reads_bodies else MAX_WAITING,
            "headers_only": None if self.consumer.reads_bodies else True,
        }

    async def _note(self, info: ConsumerInfo) -> None:
        """Stores the acknowledged position, even before the first ack, because a recreated durable that begins with new
        events would miss the events in between."""
        if _acknowledged(info) > self._noted:
            async with self._positions() as conn:
                position = _acknowledged(await self.js.consumer_info(STREAM, self.consumer.name))
                await conn.execute(_NOTE, (self.consumer.name, await self._log(), position))
            self._noted = position

    @contextlib.asynccontextmanager
    async def _positions(self) -> AsyncIterator[Connection]:
        """Keeps `log rebuild` from deleting consumers and positions while the block runs, so that the position of a
        deleted consumer is not stored for the new one."""
        async with self.pool.connection() as conn, conn.transaction():
            await conn.execute("LOCK TABLE durables IN ROW EXCLUSIVE MODE")
            yield conn

    async def _log(self) -> str:
        """Returns the time when the stream was created, which identifies the log."""
        return str((await self.js.stream_info(STREAM)).created)

    def _waiting(self, info: ConsumerInfo) -> tuple[int, ...]:
        """Returns a value that changes while events are delivered; () if no events wait or the limit of unacknowledged
        events is reached."""
        if not info.num_pending or (info.num_ack_pending or 0) >= (info.config.max_ack_pending or 0):
            return ()
        return info.num_pending, info.delivered.stream_seq if info.delivered else 0


def _acknowledged(info: ConsumerInfo) -> int:
    return info.ack_floor.stream_seq if info.ack_floor else 0
