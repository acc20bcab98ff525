"""Connects durable consumers to NATS by FastStream: one broker, and durable pull subscriptions with manual acks.

Delivery is only a trigger. FastStream's pull loop runs the handlers of a fetch concurrently, and its default policies
lose events after an error. So a handler only puts the message into a DurableConsumer, which processes messages thread
by thread and acknowledges them when their work is done.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import psycopg
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy

from turnlog.agent.runtime import Runtime
from turnlog.consumers.workers.durable_consumer import DurableConsumer
from turnlog.consumers.workers.durables import LOOK_S, MISSING, Durable
from turnlog.events.client import LOST_SERVER, RobustClient, servers_of
from turnlog.events.errors import cause
from turnlog.events.heartbeats import ROUND_S, Heartbeat
from turnlog.events.subjects import STREAM

logger = logging.getLogger("turnlog.consumers")
FETCH, FETCH_BODIES = 200, 50
PAUSE_S = 1.0  # equals the timeout of a fetch, so that an empty fetch is repeated at once
FETCH_ROUND_S = 15.0  # after watching for this time without a fetch, the subscriptions are recreated
RENEWED = "its subscription was renewed"
INBOX_ROUND_S = 150.0  # long, because work may wait for projectors for up to a minute


class _WatchedJetStream(JetStreamContext):
    """A JetStream context whose pull subscriptions record each fetch, recreate a missing durable, and pause after a
    failure.

    A fetch fails at once while NATS is unavailable, the client's buffer is full or the durable is missing, and
    FastStream would repeat it without a pause.
    """

    def __init__(self, client: Client, durables: Mapping[str, Durable], **options: Any) -> None:
        super().__init__(client, **options)
        self._client, self._durables = client, durables

    async def pull_subscribe(self, *args: Any, **options: Any) -> JetStreamContext.PullSubscription:
        subscription = await super().pull_subscribe(*args, **options)
        fetch_now, name, said = subscription.fetch, str(options.get("durable")), ""
        durable = self._durables.get(name)

        async def fetch(*args: Any, **options: Any) -> list[Msg]:
            nonlocal said
            began, problem = time.monotonic(), "NATS is away"
            try:
                if self._client.is_connected:  # otherwise requests would accumulate and all be sent after the reconnect
                    messages = await fetch_now(*args, **options)
                    _fetched(durable, None)
                    return messages
            except TimeoutError:
                problem = ""  # no messages are waiting
            except Exception as error:  # any error: this loop must not end silently
                problem = await _failed(durable, cause(error))
                if problem != said:
                    logger.warning("%s gets no messages: %s", name, problem)
            said = problem if problem != "NATS is away" else said
            _fetched(durable, problem or None)
            await asyncio.sleep(began + PAUSE_S - time.monotonic())
            return []

        # The library creates the subscription, so a subclass cannot be used.
        subscription.fetch = fetch  # type: ignore[method-assign]
        return subscription


def _fetched(durable: Durable | None, problem: str | None) -> None:
    """Records a fetch in the durable's heartbeat. problem: why the fetch failed, or None."""
    if durable is not None and durable.pulls is not None:
        durable.pulls.beat(problem)


async def _failed(durable: Durable | None, why: str) -> str:
    """Recreates the durable if it is missing. Returns the problem to report: MISSING, or `why`."""
    if durable is not None:
        made = durable.made
        with contextlib.suppress(NatsError, psycopg.Error, OSError, TimeoutError):  # `look` reports it
            await durable.ensure()
            return MISSING if durable.made > made else why
    return why


class _WatchedClient(RobustClient):
    def __init__(self, durables: Mapping[str, Durable]) -> None:
        super().__init__()
        self._durables = durables

    def jetstream(self, **options: Any) -> JetStreamContext:
        return _WatchedJetStream(self, self._durables, **options)


class RobustBroker(NatsBroker):
    """A broker with the client of events/client.py, which invalid messages cannot stop, instead of FastStream's client.

    durables: the durables of its subscribers, by name.
    """

    durables: Mapping[str, Durable] = MappingProxyType({})
    is_stopping = False

    async def _connect(self) -> Client:
        client = _WatchedClient(self.durables)
        await client.connect(**self._connection_kwargs)
        self.config.connect(client)
        return client


def make_broker(nats_url: str, name: str, closed: asyncio.Event | None = None) -> RobustBroker:
    """Returns a broker for NATS. closed: set when the connection is closed for good; FastStream itself would continue
    to poll it."""

    async def on_closed() -> None:
        if closed is not None and not broker.is_stopping:
            closed.set()

    broker = RobustBroker(
        servers_of(nats_url),
        name=name,
        closed_cb=on_closed,
        reconnect_time_wait=1,
        logger=None,
        apply_types=False,  # otherwise FastDepends sends every message through a worker thread
        **LOST_SERVER,
    )
    return broker


def subscribe(
    broker: NatsBroker, subject: str, consumer: DurableConsumer, deliver: DeliverPolicy = DeliverPolicy.ALL
) -> None:
    """Subscribes a durable with the consumer's name to one stored subject; workers with the same name share the work.

    A durable consumer that reads bodies gets fewer messages at a time, because each may be several megabytes long.
    """

    @broker.subscriber(
        subject,
        stream=JStream(STREAM, declare=False),
        durable=consumer.name,
        config=ConsumerConfig(deliver_policy=deliver, max_deliver=-1),  # `Durable` has already created the consumer
        pull_sub=PullSub(batch_size=FETCH_BODIES if consumer.reads_bodies else FETCH, timeout=PAUSE_S),
        ack_policy=AckPolicy.MANUAL,
        decoder=_whole_message,
        title=consumer.name,
    )
    async def take(message: Any) -> None:  # with any other type AsyncAPI's document shows no payload
        consumer.put(message)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A durable consumer and the stored subject that it reads. deliver: where a new durable begins to read."""

    consumer: DurableConsumer
    subject: str
    deliver: DeliverPolicy = DeliverPolicy.ALL


@dataclass(frozen=True, slots=True)
class Interval:
    """Periodic work of a role. run: a coroutine function that works until its event is set. round_s: see Heartbeat."""

    name: str
    run: Callable[[asyncio.Event, Heartbeat], Coroutine[Any, Any, None]]
    round_s: float = ROUND_S


@contextlib.asynccontextmanager
async def consuming(
    runtime: Runtime, role: str, subscriptions: Sequence[Subscription], intervals: Sequence[Interval] = ()
) -> AsyncIterator[None]:
    """Runs the durable consumers while the block runs; at its end, running work gets each consumer's `grace_s`."""
    stop, beats, js = asyncio.Event(), runtime.heartbeats, runtime.log.nc.jetstream()
    durables = [
        Durable(subscription.consumer, subscription.subject, subscription.deliver, runtime.pool, js)
        for subscription in subscriptions
    ]
    for durable in durables:
        await durable.ensure_in_time()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(_subscribed(runtime, role, durables))
        for durable in durables:
            name, consumer = durable.consumer.name, durable.consumer
            work, look = partial(consumer.run, stop), partial(_look_after, durable)
            await stack.enter_async_context(beats.running(role, name, work, stop, INBOX_ROUND_S, grace_s=None))
            await stack.enter_async_context(beats.running(role, f"{name}-durable", look, stop))
        for interval in intervals:
            run = partial(interval.run, stop)
            await stack.enter_async_context(beats.running(role, interval.name, run, stop, interval.round_s))
        yield


@contextlib.asynccontextmanager
async def _subscribed(runtime: Runtime, role: str, durables: Sequence[Durable]) -> AsyncIterator[None]:
    """Fetches messages from the durables while the block runs, and recreates subscriptions that no longer fetch."""

    async def subscribed() -> RobustBroker:
        broker = make_broker(runtime.nats_url, f"turnlog-{role}", runtime.log.closed)
        broker.durables = {durable.consumer.name: durable for durable in durables}
        for durable in durables:
            subscribe(broker, durable.subject, durable.consumer, durable.deliver)
        await broker.start()
        return broker

    broker, beats, stop = await subscribed(), runtime.heartbeats, asyncio.Event()

    async def watch(beat: Heartbeat) -> None:
        nonlocal broker
        missed, last = Counter[str](), dict[str, float]()
        while True:
            for name, pull in pulls.items():
                missed[name] = missed[name] + 1 if last.get(name) == pull.at else 0
                last[name] = pull.at
            # Rounds of this loop, not seconds: where the machine gives this process no time, both loops are late.
            if late := [name for name, rounds in missed.items() if rounds > FETCH_ROUND_S / PAUSE_S]:
                _report_late(late, [name for name in late if pulls[name].problem == RENEWED])
                await _stopped(broker)
                broker = await subscribed()
                for pull in pulls.values():
                    pull.beat(RENEWED)  # until the first fetch
            beat.beat()
            await asyncio.sleep(PAUSE_S)

    pulls = dict[str, Heartbeat]()
    for durable in durables:
        name = durable.consumer.name
        durable.pulls = pulls[name] = Heartbeat(role, f"{name}-fetch", beats.changed, FETCH_ROUND_S)
        beats.loops.append(durable.pulls)
    try:
        async with beats.running(role, f"{role}-subscriptions", watch, stop):
            yield
    finally:
        for durable in durables:
            if durable.pulls is not None:
                beats.loops.remove(durable.pulls)
        await _stopped(broker)


def _report_late(late: Sequence[str], again: Sequence[str]) -> None:
    """Logs which consumers do not fetch. again: those of them that have not fetched since they were last renewed."""
    if again:
        logger.error(
            "%s cannot fetch events, even after subscribing again: NATS does not answer, or the machine is overloaded. "
            "Their events wait in the log; `turnlog doctor` shows what is wrong",
            ", ".join(again),
        )
    else:
        logger.warning(
            "%s fetched nothing for %.0f s, so their subscriptions are renewed. Their events wait in the log; there is "
            "nothing to do unless an error follows",
            ", ".join(late),
            FETCH_ROUND_S,
        )


async def _stopped(broker: RobustBroker) -> None:
    broker.is_stopping = True
    await broker.stop()


async def _look_after(durable: Durable, beat: Heartbeat) -> None:
    while True:
        beat.beat(await durable.look())
        await asyncio.sleep(LOOK_S if beat.problem is None else PAUSE_S)


async def _whole_message(message: NatsMessage) -> NatsMessage:
    """A decoder for FastStream that decodes nothing: the handler gets the whole message."""
    return message
