"""The FastStream side: one broker, durable pull subscriptions with manual acks, AsyncAPI.

Delivery is only a trigger. FastStream's pull loop runs the handlers of a fetch concurrently and its default policies
lose events on an error, so a handler only puts the message into an Inbox, which processes messages thread by thread
and acknowledges them when their work is done.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from turnlog.agent.runtime import Runtime
from turnlog.consumers.workers.inbox import Inbox
from turnlog.events.client import RobustClient
from turnlog.events.errors import LogUnavailable, cause
from turnlog.events.subjects import STREAM
from turnlog.events.tasks import cancel

logger = logging.getLogger("turnlog.consumers")
MAX_WAITING, MAX_WAITING_BODIES = 2_000, 100
FETCH, FETCH_BODIES = 200, 50
PAUSE_S = 1.0  # as long as a fetch waits, so that one that found nothing is repeated at once
PATIENCE_S = 60.0


class _PausingJetStream(JetStreamContext):
    """Its pull subscriptions rest for PAUSE_S where a fetch fails at once; FastStream repeats it without a pause.

    That is so while NATS is away, once the buffer of the client is full, and while the durable is missing.
    """

    def __init__(self, client: Client, **options: Any) -> None:
        super().__init__(client, **options)
        self._client = client

    async def pull_subscribe(self, *args: Any, **options: Any) -> JetStreamContext.PullSubscription:
        found = await super().pull_subscribe(*args, **options)
        fetch_now, durable, said = found.fetch, options.get("durable"), ""

        async def fetch(*args: Any, **options: Any) -> list[Msg]:
            nonlocal said
            began = time.monotonic()
            try:
                if self._client.is_connected:  # else requests would pile up and all be sent after the reconnect
                    return await fetch_now(*args, **options)
            except TimeoutError:
                said = ""  # nothing waits
            except (NatsError, OSError) as error:
                if said != (said := cause(error)):
                    logger.warning("%s gets no messages: %s", durable, said)
            await asyncio.sleep(began + PAUSE_S - time.monotonic())
            return []

        # The library makes the subscription itself, so that a subclass of it has no place.
        found.fetch = fetch  # type: ignore[method-assign]
        return found


class _PausingClient(RobustClient):
    def jetstream(self, **options: Any) -> JetStreamContext:
        return _PausingJetStream(self, **options)


class RobustBroker(NatsBroker):
    """Uses the client of events/client.py, which invalid messages cannot stop, in place of FastStream's."""

    async def _connect(self) -> Client:
        client = _PausingClient()
        await client.connect(**self._connection_kwargs)
        self.config.connect(client)
        return client


def make_broker(nats_url: str, name: str, closed: asyncio.Event | None = None) -> NatsBroker:
    """closed: set when the connection is closed and does not return; FastStream itself would continue to poll it."""

    async def on_closed() -> None:
        if closed is not None:
            closed.set()

    return RobustBroker(
        [part.strip() for part in nats_url.split(",")],
        name=name,
        closed_cb=on_closed,
        max_reconnect_attempts=-1,
        reconnect_time_wait=1,
        logger=None,
        apply_types=False,  # FastDepends sends every message through a worker thread
    )


def subscribe(broker: NatsBroker, subject: str, inbox: Inbox, deliver: DeliverPolicy = DeliverPolicy.ALL) -> None:
    """Subscribes a durable with the inbox's name to one stored subject; workers with the same name share the work.

    An inbox that reads no bodies gets none, and any other only a few at a time: each may have megabytes.
    """

    @broker.subscriber(
        subject,
        stream=JStream(STREAM, declare=False),
        durable=inbox.name,
        config=ConsumerConfig(deliver_policy=deliver, max_deliver=-1, **_settings(inbox)),
        pull_sub=PullSub(batch_size=FETCH_BODIES if inbox.reads_bodies else FETCH, timeout=PAUSE_S),
        ack_policy=AckPolicy.MANUAL,
        decoder=_whole_message,
        title=inbox.name,
    )
    async def take(message: Any) -> None:  # the document shows a payload of no other type
        inbox.put(message)


@dataclass(frozen=True, slots=True)
class Subscription:
    """An inbox and the stored subject that fills it. deliver: from where on a new durable reads."""

    inbox: Inbox
    subject: str
    deliver: DeliverPolicy = DeliverPolicy.ALL


Loop = Callable[[asyncio.Event], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def consuming(
    runtime: Runtime, name: str, subscriptions: Sequence[Subscription], loops: Sequence[Loop] = ()
) -> AsyncIterator[None]:
    """Fills the inboxes and works on them while the block runs; at its end work under way is finished first.

    loops: run beside them, each with the event that is set at the end; they are cancelled then.
    """
    stop = asyncio.Event()
    broker = make_broker(runtime.nats_url, name, runtime.log.closed)
    for one in subscriptions:
        subscribe(broker, one.subject, one.inbox, one.deliver)
    working = [asyncio.create_task(one.inbox.run(stop)) for one in subscriptions]
    looping = [asyncio.create_task(loop(stop)) for loop in loops]
    try:
        for one in subscriptions:
            await keep_current(runtime.log.nc.jetstream(), one.inbox)
        await broker.start()
        yield
    finally:
        stop.set()
        await asyncio.gather(cancel(*looping), *working, return_exceptions=True)
        await broker.stop()


def _settings(inbox: Inbox) -> dict[str, Any]:
    """What is set of a new durable and updated of an existing one."""
    return {
        "ack_wait": inbox.ack_wait_s,
        "max_ack_pending": MAX_WAITING_BODIES if inbox.reads_bodies else MAX_WAITING,
        "headers_only": None if inbox.reads_bodies else True,
    }


async def keep_current(js: JetStreamContext, inbox: Inbox) -> None:
    """Updates an existing durable to the settings of this inbox; FastStream never updates one.

    Its position is unchanged. Waits for a server that fails meanwhile. Raises LogUnavailable.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = (await js.consumer_info(STREAM, inbox.name)).config
            if found != (wanted := found.evolve(**_settings(inbox))):
                await js.add_consumer(STREAM, wanted)
            return
        except NotFoundError:
            return  # the first start of this durable
        except (NatsError, OSError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise LogUnavailable(f"cannot look after the consumer {inbox.name}: {cause(error)}") from error
            await asyncio.sleep(1.0)


async def _whole_message(message: NatsMessage) -> NatsMessage:
    """A decoder that keeps the message: a handler without injection gets nothing else."""
    return message
