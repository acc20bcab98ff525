"""A worker uses almost no CPU while NATS is unavailable or its durable is missing, and continues afterwards."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.own_servers import own_servers
from helpers.sample_events import turn
from helpers.servers import eventually
from nats.js import JetStreamContext

from turnlog.consumers.runtime import opened
from turnlog.consumers.workers.app import RobustBroker, subscribe
from turnlog.consumers.workers.durable_consumer import Delivery, DurableConsumer
from turnlog.events.subjects import STREAM, type_filter

MEASURED_S = 1.0
MOST_FETCHES = 3  # without a pause there would be hundreds


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns a list of the times at which a pull subscription requested messages."""
    times: list[float] = []
    fetch = JetStreamContext.PullSubscription.fetch

    async def counted(self: Any, *args: Any, **options: Any) -> Any:
        times.append(time.monotonic())
        return await fetch(self, *args, **options)

    monkeypatch.setattr(JetStreamContext.PullSubscription, "fetch", counted)
    return times


async def in_a_while(fetches: list[float]) -> int:
    """Returns the number of fetches in the next MEASURED_S seconds."""
    before = len(fetches)
    await asyncio.sleep(MEASURED_S)
    return len(fetches) - before


@pytest.mark.nightly
async def test_a_worker_rests_while_nats_is_away_and_goes_on_afterwards(
    tmp_path: Path, fetches: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    worked: list[int] = []

    async def work(deliveries: list[Delivery]) -> None:
        worked.extend(delivery.seq for delivery in deliveries)

    async with own_servers(tmp_path) as own, opened(own.settings()) as runtime:
        full_at_once = RobustBroker(own.where.nats_url, pending_size=0, max_reconnect_attempts=-1, logger=None)
        consumer, stop = DurableConsumer(runtime.pool, "resting", work), asyncio.Event()
        subscribe(full_at_once, type_filter("turn_recorded"), consumer)

        async def done(seq: int) -> bool:
            return seq in worked

        async def is_said() -> bool:
            return "resting gets no messages" in caplog.text

        async with full_at_once, asyncio.TaskGroup() as group:
            group.create_task(consumer.run(stop))
            await full_at_once.start()
            first = (await runtime.log.append(turn("before"))).seq
            await eventually(lambda: done(first))
            await own.kill("nats")
            away = await in_a_while(fetches)
            await own.back()
            second = (await runtime.log.append(turn("after"))).seq
            await eventually(lambda: done(second))
            await runtime.log.nc.jetstream().delete_consumer(STREAM, consumer.name)
            without_durable = await in_a_while(fetches)
            await eventually(is_said)
            stop.set()
    assert away <= MOST_FETCHES
    assert without_durable <= MOST_FETCHES
