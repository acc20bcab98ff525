"""Creates, lists and removes subscribers: programs of a tenant that read its log from NATS with their own credential.

The durable in JetStream is the record of a subscriber. turnlog does not store the password; NATS does.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from turnlog.agent.runtime import Runtime
from turnlog.events.errors import LogUnavailable, NotFound, TurnlogError
from turnlog.events.log import nats_errors
from turnlog.events.subjects import DOMAIN, STREAM, check_tenant, subscriber_durable, subscriber_of, tenant_filter

logger = logging.getLogger("turnlog.agent")

# A function of a durable's name and a password, with which its subscriber may connect from now on; None revokes the
# password. Returns settings to add by hand if turnlog does not run nats-server itself, otherwise None.
Admit = Callable[[str, str | None], Awaitable[str | None]]


class SubscriberExists(TurnlogError):
    """The tenant already has a subscriber of this name."""

    code = "subscriber-exists"


@dataclass(frozen=True, slots=True)
class NewSubscriber:
    """A new subscriber. user, password: its NATS credential. domain: the JetStream domain that clients name.
    to_configure: settings to add to nats-server by hand."""

    name: str
    tenant: str
    durable: str
    stream: str
    domain: str
    user: str
    password: str
    to_configure: str | None


@dataclass(frozen=True, slots=True)
class SubscriberInfo:
    """A subscriber and how far it has read. position: everything up to this sequence is acknowledged. pending: how many
    events are not delivered yet."""

    name: str
    durable: str
    position: int
    unacknowledged: int
    pending: int
    created_at: datetime | None


@dataclass(frozen=True, slots=True)
class RemovedSubscriber:
    name: str
    to_configure: str | None


async def create_subscriber(
    runtime: Runtime, tenant: str, name: str, admit: Admit, from_now: bool = False
) -> NewSubscriber:
    """Creates a durable consumer of the tenant's events, and a password that is valid only for this durable. from_now:
    skips earlier events.

    Raises InvalidToken, SubscriberExists, LogUnavailable, and the errors of admit; then the durable does not exist
    either.
    """
    durable = subscriber_durable(tenant, name)
    if any(subscriber.durable == durable for subscriber in await list_subscribers(runtime, tenant)):
        raise SubscriberExists(f"there is a subscriber {name!r} already; remove it first, or choose another name")
    config = ConsumerConfig(
        durable_name=durable,
        filter_subject=tenant_filter(tenant),
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.NEW if from_now else DeliverPolicy.ALL,
        max_deliver=-1,
    )
    with nats_errors(f"NATS did not make the durable {durable}"):
        await runtime.log.nc.jetstream().add_consumer(STREAM, config)
    password = secrets.token_urlsafe(32)
    try:
        left = await admit(durable, password)
    except BaseException:
        await _undo(runtime, durable)
        raise
    return NewSubscriber(name, tenant, durable, STREAM, DOMAIN, durable, password, left)


async def _undo(runtime: Runtime, durable: str) -> None:
    """Removes a durable for which no password could be set. A failure is only logged, because the caller raises the
    first error.
    """
    try:
        with nats_errors(f"the durable {durable} without a password was not removed"):
            await runtime.log.nc.jetstream().delete_consumer(STREAM, durable)
    except LogUnavailable as error:
        logger.warning("%s", error)


async def list_subscribers(runtime: Runtime, tenant: str) -> list[SubscriberInfo]:
    """Returns the subscribers of the tenant, by name. Raises InvalidToken, LogUnavailable."""
    check_tenant(tenant)
    infos: list[ConsumerInfo] = []
    with nats_errors("cannot ask NATS for its durables"):
        while page := await runtime.log.nc.jetstream().consumers_info(STREAM, len(infos)):
            infos += page
    subscribers = []
    for info in infos:
        subscriber, at = subscriber_of(info.name), info.ack_floor.stream_seq if info.ack_floor else 0
        if subscriber and subscriber[0] == tenant:
            waiting = (info.num_ack_pending or 0, info.num_pending or 0)
            subscribers.append(SubscriberInfo(subscriber[1], info.name, at, *waiting, info.created))
    return sorted(subscribers, key=lambda subscriber: subscriber.name)


async def remove_subscriber(runtime: Runtime, tenant: str, name: str, admit: Admit) -> RemovedSubscriber:
    """Removes a subscriber: its position is lost, and it can no longer connect. Raises InvalidToken, NotFound,
    LogUnavailable, and the errors of admit."""
    durable = subscriber_durable(tenant, name)
    with nats_errors(f"NATS did not remove the durable {durable}"):
        try:
            await runtime.log.nc.jetstream().delete_consumer(STREAM, durable)
        except NotFoundError:
            raise NotFound(f"there is no subscriber {name!r}; `turnlog subscribers list` shows them") from None
    return RemovedSubscriber(name, await admit(durable, None))
