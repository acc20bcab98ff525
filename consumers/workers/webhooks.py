"""Delivers events to webhooks, in one task for each webhook; several processes may serve the same webhook."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial

import psycopg
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from turnlog.agent.access import webhooks
from turnlog.agent.access.webhooks import ATTEMPTS, BACK_OFF_S, CannotBeSent, NotDelivered, Webhook
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.subjects import STREAM, webhook_durable
from turnlog.events.tasks import cancel, pause

logger = logging.getLogger("turnlog.consumers")
LOOK_S, FETCH_S, AT_ONCE = 2.0, 5.0, 8


@contextlib.asynccontextmanager
async def delivering(runtime: Runtime) -> AsyncIterator[None]:
    """Delivers events while the block runs; created and removed webhooks are noticed within LOOK_S seconds."""
    stop = asyncio.Event()
    async with runtime.heartbeats.running("reactors", "webhooks", partial(_watch, runtime, stop), stop):
        yield


async def _watch(runtime: Runtime, stop: asyncio.Event, beat: Heartbeat) -> None:
    tasks: dict[tuple[str, Webhook], asyncio.Task[None]] = {}
    try:
        while not stop.is_set():
            try:
                known = [(tenant, hook) for tenant, hook, _ in await webhooks.all_webhooks(runtime)]
                await cancel(*(tasks.pop(gone) for gone in tasks.keys() - known))
                for tenant, hook in known:
                    if (tenant, hook) not in tasks or tasks[tenant, hook].done():
                        tasks[tenant, hook] = asyncio.create_task(_deliver_all(runtime, tenant, hook))
                beat.beat()
            except (TurnlogError, NatsError, OSError) as error:
                beat.fail(f"webhooks wait: {error}")
            await pause(stop, LOOK_S)
    finally:
        await cancel(*tasks.values())


async def _deliver_all(runtime: Runtime, tenant: str, hook: Webhook) -> None:
    """Delivers events to one webhook until it is cancelled or NATS or Postgres fails."""
    try:
        durable = webhook_durable(tenant, hook.name)
        pulled = await runtime.log.nc.jetstream().pull_subscribe_bind(durable, STREAM)
        while True:
            with contextlib.suppress(TimeoutError):
                messages = await pulled.fetch(AT_ONCE, timeout=FETCH_S)
                async with asyncio.TaskGroup() as group:
                    for message in messages:
                        group.create_task(_deliver(runtime, tenant, hook, message))
    except* (TurnlogError, NatsError, psycopg.Error, OSError) as errors:
        logger.warning("webhook %s of tenant %s waits: %s", hook.name, tenant, errors.exceptions[0])


async def _deliver(runtime: Runtime, tenant: str, hook: Webhook, message: Msg) -> None:
    attempt, seq = message.metadata.num_delivered or 1, message.metadata.sequence.stream
    try:
        await webhooks.deliver(runtime, tenant, hook, await runtime.log.stored(seq))
    except NotFound:
        pass  # the event was erased or overwritten meanwhile
    except NotDelivered as error:
        if attempt < ATTEMPTS and not isinstance(error, CannotBeSent):
            await message.nak(delay=BACK_OFF_S[attempt - 1])
            return
        logger.warning("webhook %s of tenant %s gives up sequence %d: %s", hook.name, tenant, seq, error)
        await webhooks.give_up(runtime, tenant, hook.name, seq, str(error))
    await message.ack()
