"""The FastStream side: one broker, durable pull subscriptions with manual acks, AsyncAPI.

Delivery is only a trigger here. FastStream's pull loop runs the handlers of a fetch concurrently and its default
policies lose events on an error, so a handler does nothing but put the message into an Inbox, which works
through what has come in, thread by thread, and acknowledges only what is done.
"""

from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.js.api import ConsumerConfig, DeliverPolicy

from turnlog.consumers.inbox import Inbox
from turnlog.events.subjects import STREAM

ACK_WAIT_S = 30.0
MAX_WAITING = 2_000
FETCH = 200


def make_broker(nats_url: str, name: str) -> NatsBroker:
    return NatsBroker(
        [part.strip() for part in nats_url.split(",")],
        name=name,
        max_reconnect_attempts=-1,
        reconnect_time_wait=1,
        logger=None,
    )


def subscribe(broker: NatsBroker, subject: str, inbox: Inbox, deliver: DeliverPolicy = DeliverPolicy.ALL) -> None:
    """A durable of the inbox's name on one stored subject; workers with the same name share the work."""

    @broker.subscriber(
        subject,
        stream=JStream(STREAM, declare=False),
        durable=inbox.name,
        config=ConsumerConfig(deliver_policy=deliver, ack_wait=ACK_WAIT_S, max_ack_pending=MAX_WAITING, max_deliver=-1),
        pull_sub=PullSub(batch_size=FETCH, timeout=1.0),
        ack_policy=AckPolicy.MANUAL,
        decoder=_leave_undecoded,
        title=inbox.name,
    )
    async def take(body: bytes, message: NatsMessage) -> None:
        inbox.put(message)


async def _leave_undecoded(message: NatsMessage) -> bytes:
    return message.body
