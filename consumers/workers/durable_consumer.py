"""Processes delivered messages grouped by thread, and acknowledges each message only when its work is done.

If the work on an event fails TRIES times, the event is parked as a dead letter, and other events continue. While a
dependency (model, Postgres, NATS) is unavailable, no event is parked.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from turnlog.agent.operations.dead_letters import EVENT_ERRORS, park_event
from turnlog.agent.retry_later import RetryLater
from turnlog.events import tracing
from turnlog.events.errors import DatabaseUnavailable, GapInLog, LogUnavailable
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.stored import Stored
from turnlog.events.subjects import parse_stored
from turnlog.events.tasks import cancel

if TYPE_CHECKING:  # loading it takes half a second, and commands without a consumer do not need it
    from faststream.nats import NatsMessage

    from turnlog.agent.runtime import Pool

logger = logging.getLogger("turnlog.consumers")
ACK_WAIT_S = 30.0
BEATS = 3
ROUND_S = 5.0
RETRY_S = 5.0
TRIES = 5
# A longer wait is split into several waits, so that an observer sees that the worker has not stopped.
AGAIN_S = 60.0
SERVER_AWAY_S = 2.0
SERVER_AWAY = (psycopg.OperationalError, DatabaseUnavailable, LogUnavailable, GapInLog)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that waits to be processed. stored: the body is empty unless the durable consumer reads bodies. message:
    the message to acknowledge; None for work that is repeated by hand. traceparent: from the message's header.
    """

    stored: Stored
    attempt: int = 1
    message: "NatsMessage | None" = None
    traceparent: str | None = None

    @property
    def seq(self) -> int:
        return self.stored.seq

    @property
    def partition(self) -> int:
        return parse_stored(self.stored.subject).partition

    @property
    def place(self) -> tuple[str, str]:
        """Returns (tenant, thread token)."""
        subject = parse_stored(self.stored.subject)
        return subject.tenant, subject.thread_token


Work = Callable[[list[Delivery]], Awaitable[None]]
GiveWay = Callable[[asyncio.Event], Awaitable[None]]


async def _at_once(stop: asyncio.Event) -> None:
    """Returns at once; the default for give_way."""


class DurableConsumer:
    """Calls `work` with all waiting deliveries of one thread at once, for up to `parallel` threads at a time.

    Tenants take turns: the tenant that was served longest ago is next, with its thread that has waited longest.
    work returns when the deliveries are done; after RetryLater or any other exception they are redelivered. After one
    of EVENT_ERRORS each delivery is tried separately, so that only the failing delivery is parked.
    """

    def __init__(
        self,
        pool: "Pool",
        name: str,
        work: Work,
        parallel: int = 1,
        grace_s: float = 1.0,
        ack_wait_s: float = ACK_WAIT_S,
        reads_bodies: bool = False,
        give_way: GiveWay = _at_once,
    ) -> None:
        """Creates the consumer. pool: connections to store dead letters.

        grace_s: how long running work may continue after a stop; then it is cancelled and redelivered. ack_wait_s: the
        time after which a dead worker's messages are redelivered; a living worker acks progress BEATS times within it.
        reads_bodies: True keeps the messages' bodies for `work`. give_way: awaited before work starts; must return when
        the consumer stops.
        """
        self._pool, self.name, self._work = pool, name, work
        self._parallel, self._grace_s = parallel, grace_s
        self.ack_wait_s, self.reads_bodies = ack_wait_s, reads_bodies
        self._give_way = give_way
        self._waiting: dict[tuple[str, str], list[Delivery]] = {}
        self._busy: set[tuple[str, str]] = set()
        self._started, self._served = 0, dict[str, int]()  # tenant → number of its last work
        self._failures = Counter[int]()
        self._arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, message: "NatsMessage") -> None:
        raw = message.raw_message
        about, body = raw.metadata, raw.data if self.reads_bodies else b""
        stored_ns = int(about.timestamp.timestamp() * 1_000_000) * 1_000
        stored = Stored(about.sequence.stream, raw.subject, body, stored_ns, pending=0)
        delivery = Delivery(stored, about.num_delivered or 1, message, (raw.headers or {}).get(tracing.HEADER))
        self._waiting.setdefault(delivery.place, []).append(delivery)
        self._arrived.set()

    async def run(self, stop: asyncio.Event, beat: Heartbeat | None = None) -> None:
        """Processes deliveries until `stop` is set. Unfinished deliveries are then redelivered, to this or another
        worker."""
        holding = asyncio.create_task(self._hold(), name=f"{self.name}-hold")
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                if beat is not None:
                    beat.beat()
                await self._give_way(stop)
                if not stop.is_set():
                    self._start_ready()
                arrived = asyncio.create_task(self._arrived.wait())
                waiting = {arrived, stopping, holding, *self._tasks}
                await asyncio.wait(waiting, timeout=ROUND_S, return_when=asyncio.FIRST_COMPLETED)
                arrived.cancel()
                if holding.done():
                    holding.result()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._grace_s)
        finally:
            await cancel(*self._tasks)
            holding.cancel()
            stopping.cancel()

    def _start_ready(self) -> None:
        self._arrived.clear()
        while len(self._busy) < self._parallel and (place := self._next()) is not None:
            self._started += 1
            self._served[place[0]] = self._started
            task = asyncio.create_task(self._do(place, self._waiting.pop(place)))
            self._busy.add(place)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next(self) -> tuple[str, str] | None:
        ready = (place for place in self._waiting if place not in self._busy)
        return min(ready, key=lambda place: self._served.get(place[0], 0), default=None)

    async def _do(self, place: tuple[str, str], deliveries: list[Delivery]) -> None:
        beat = asyncio.create_task(self._keep(deliveries))
        try:
            await self._attempt(deliveries)
        except RetryLater as later:
            logger.info("%s waits %.0f s: %s", self.name, later.seconds, later)
            await self._again(deliveries, later.seconds)
        except Exception as error:  # a failure on one thread must not end the role; the deliveries come again
            logger.warning("%s failed on %s: %s: %s", self.name, place[1], type(error).__name__, error)
            await self._again(deliveries, _patience(error, deliveries[0].attempt))
        finally:
            beat.cancel()
            self._busy.discard(place)

    async def _attempt(self, deliveries: list[Delivery]) -> None:
        """Processes the deliveries and acknowledges them. Raises RetryLater, and errors that are not caused by a single
        event."""
        parents = [delivery.traceparent for delivery in deliveries if delivery.traceparent]
        try:
            with tracing.span(f"process {self.name}", parent=parents[-1]) if parents else contextlib.nullcontext():
                await self._work(deliveries)
        except EVENT_ERRORS as error:
            if len(deliveries) == 1:
                return await self._failed(deliveries[0], error)
            for delivery in deliveries:
                await self._attempt([delivery])
            return None
        for delivery in deliveries:
            del self._failures[delivery.seq]
            await _ack(delivery)

    async def _failed(self, delivery: Delivery, error: Exception) -> None:
        self._failures[delivery.seq] += 1
        tries, why = self._failures[delivery.seq], f"{type(error).__name__}: {error}"
        if tries < TRIES:
            logger.warning("%s failed on sequence %d (%d of %d): %s", self.name, delivery.seq, tries, TRIES, why)
            return await self._again([delivery], RETRY_S * tries)
        async with self._pool.connection() as conn:
            await park_event(conn, self.name, delivery.stored, why)
        logger.error(
            "%s parked sequence %d after %d tries (`turnlog dead-letters`): %s", self.name, delivery.seq, tries, why
        )
        del self._failures[delivery.seq]
        await _ack(delivery)

    async def _again(self, deliveries: list[Delivery], seconds: float) -> None:
        for delivery in deliveries:
            with contextlib.suppress(Exception):  # if the nak is lost, the server redelivers after its ack wait
                if delivery.message is not None:
                    await delivery.message.nack(delay=min(seconds, AGAIN_S))

    async def _keep(self, deliveries: list[Delivery]) -> None:
        while True:
            await asyncio.sleep(self.ack_wait_s / BEATS)
            await _in_progress(deliveries)

    async def _hold(self) -> None:
        """Reports progress of all waiting deliveries to the server, so that it does not redeliver them to another
        worker."""
        while True:
            await asyncio.sleep(self.ack_wait_s / BEATS)
            await _in_progress([delivery for waiting in self._waiting.values() for delivery in waiting])


def _patience(error: Exception, attempt: int) -> float:
    """Returns the seconds to wait before a retry: few if a server is unavailable, more for errors that may be
    permanent."""
    if isinstance(error, SERVER_AWAY):
        return SERVER_AWAY_S
    return RETRY_S * min(attempt, 12)


async def _ack(delivery: Delivery) -> None:
    if delivery.message is not None:
        await delivery.message.ack()


async def _in_progress(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        with contextlib.suppress(Exception):  # if the server was lost, the message will be redelivered
            if delivery.message is not None:
                await delivery.message.in_progress()
