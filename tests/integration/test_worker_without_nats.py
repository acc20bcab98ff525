"""A worker costs next to nothing while NATS is away or its durable is missing, and goes on afterwards."""

import asyncio
import time
from pathlib import Path

from helpers.own_servers import own_servers
from helpers.sample_events import turn
from helpers.servers import eventually

from turnlog.consumers.runtime import opened
from turnlog.consumers.workers.app import RobustBroker, subscribe
from turnlog.consumers.workers.inbox import Delivery, Inbox
from turnlog.events.subjects import STREAM, type_filter

MEASURED_S = 1.0
MOST_CPU_S = 0.05


async def cpu_s() -> float:
    """CPU seconds of this process in the next MEASURED_S."""
    before = time.process_time()
    await asyncio.sleep(MEASURED_S)
    return time.process_time() - before


async def test_a_worker_rests_while_nats_is_away_and_goes_on_afterwards(tmp_path: Path) -> None:
    worked: list[int] = []

    async def work(deliveries: list[Delivery]) -> None:
        worked.extend(one.seq for one in deliveries)

    async with own_servers(tmp_path) as own, opened(own.settings()) as runtime:
        full_at_once = RobustBroker(own.where.nats_url, pending_size=0, max_reconnect_attempts=-1, logger=None)
        inbox, stop = Inbox(runtime.pool, "resting", work), asyncio.Event()
        subscribe(full_at_once, type_filter("turn_recorded"), inbox)

        async def done(seq: int) -> bool:
            return seq in worked

        async with full_at_once, asyncio.TaskGroup() as group:
            group.create_task(inbox.run(stop))
            await full_at_once.start()
            first = (await runtime.log.append(turn("before"))).seq
            await eventually(lambda: done(first))
            await own.kill("nats")
            away = await cpu_s()
            await own.back()
            second = (await runtime.log.append(turn("after"))).seq
            await eventually(lambda: done(second))
            await runtime.log.nc.jetstream().delete_consumer(STREAM, inbox.name)
            without_durable = await cpu_s()
            stop.set()
    assert away < MOST_CPU_S
    assert without_durable < MOST_CPU_S
