"""Background work costs little for each event, and waits while projectors catch up."""

import asyncio
import math
import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from conftest import Settled
from faststream.nats import NatsMessage
from helpers.sample_events import turn
from helpers.servers import eventually, running_projector
from helpers.stage import player, wait_until_idle
from nats.js.api import ConsumerConfig

from turnlog.agent.memory.extraction.extraction_run import NAME as EXTRACTION
from turnlog.agent.models.lanes import lane_of, telling_other_processes
from turnlog.agent.privacy.keys.user_keys import KeyTable, Owner
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.workers.analytics import NAME as ANALYTICS
from turnlog.consumers.workers.durable_consumer import Delivery, DurableConsumer
from turnlog.consumers.workers.durables import MAX_WAITING_BODIES
from turnlog.consumers.workers.reactors.thread_maintenance import NAME as MEMORY
from turnlog.events.heartbeats import Heartbeats
from turnlog.events.log import Log
from turnlog.events.subjects import ANSWERING, STREAM, type_filter
from turnlog.projectors.engine.changes import Change
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import LARGE_BATCH
from turnlog.projectors.engine.projection import Projection


@pytest.mark.parametrize("quiet_s", [0.0, math.inf])
async def test_a_runner_is_catching_up_from_a_large_batch_until_it_is_idle(
    log: Log, database_url: str, settled: Settled, quiet_s: float
) -> None:
    seen: list[tuple[int, bool]] = []
    runners: list[Runner] = []

    def project(batch: Any) -> list[Change]:
        seen.append((len(batch), runners[0].catching_up))
        return []

    watching = Projection("watching", 1, (), frozenset({"turn_recorded"}), project)
    await log.append_many([turn(f"turn {n}", thread=f"t{n % 7}") for n in range(1, 3 * LARGE_BATCH)])
    async with running_projector(log, database_url, [watching], quiet_s=quiet_s) as runner:
        runners.append(runner)
        await settled("watching")
    assert sum(size for size, _ in seen) == 3 * LARGE_BATCH - 1
    was_large = [size >= LARGE_BATCH for size, _ in seen]
    expected = was_large if quiet_s == 0 else [any(was_large[: at + 1]) for at in range(len(seen))]
    assert [catching_up for _, catching_up in seen] == expected
    assert runner.catching_up == (quiet_s > 0 and any(was_large))


@dataclass
class Projectors:
    """Replaces a runner. asked: the number of reads of `catching_up`, of which the first `most` return True."""

    most: float = math.inf
    asked: int = 0

    @property
    def catching_up(self) -> bool:
        self.asked += 1
        return self.asked <= self.most


def beside(projectors: Projectors) -> Runtime:
    return Runtime(Settings(_env_file=None), "", "", *cast(Any, (None, None)), runners=cast(Any, [projectors]))


async def test_a_consumer_starts_no_work_while_projectors_catch_up() -> None:
    stop, projectors, asked = asyncio.Event(), Projectors(most=2), list[int]()

    async def work(deliveries: list[Delivery]) -> None:
        asked.append(projectors.asked)
        stop.set()

    consumer = DurableConsumer(cast(Any, None), "waiting", work, give_way=beside(projectors).give_way)
    consumer.put(message())
    await consumer.run(stop)
    assert asked == [3]


async def test_background_work_waits_no_longer_than_it_may_and_not_after_a_stop() -> None:
    stop, projectors = asyncio.Event(), Projectors()
    await beside(projectors).give_way(stop, at_most_s=0.01)
    assert projectors.catching_up
    waiting = asyncio.create_task(beside(projectors).give_way(stop, at_most_s=math.inf))
    stop.set()
    await waiting


async def test_tenants_of_a_consumer_take_turns() -> None:
    """A tenant with more waiting conversations gets no more turns. Within a tenant the oldest message comes first."""
    stop, served = asyncio.Event(), list[tuple[str, str]]()

    async def work(deliveries: list[Delivery]) -> None:
        served.append(deliveries[0].place)
        if len(served) == 7:
            stop.set()

    consumer = DurableConsumer(cast(Any, None), "waiting", work)
    for tenant, thread in [("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("b", "1"), ("b", "2"), ("c", "1")]:
        consumer.put(message(tenant, thread))
    await consumer.run(stop)
    assert served[:4] == [("a", "1"), ("b", "1"), ("c", "1"), ("a", "2")]
    assert served[4:] == [("b", "2"), ("a", "3"), ("a", "4")]


async def test_a_consumer_without_bodies_receives_none_and_an_older_one_is_updated(
    log: Log, nats_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the received bytes of a large turn. A consumer with bodies may hold only a few unacknowledged messages."""
    js, got, put = log.nc.jetstream(), dict[str, int](), DurableConsumer.put

    def measured(self: DurableConsumer, message: NatsMessage) -> None:
        got[self.name] = max(got.get(self.name, 0), len(message.raw_message.data))
        put(self, message)

    monkeypatch.setattr(DurableConsumer, "put", measured)
    older = ConsumerConfig(durable_name=MEMORY, filter_subject=type_filter("turn_recorded"), max_ack_pending=2_000)
    await js.add_consumer(STREAM, older)
    await log.append(turn("x" * 1_000_000))
    async with player(nats_url, database_url, ["projectors", "reactors", "analytics"])():
        for name in (MEMORY, EXTRACTION, ANALYTICS):
            await wait_until_idle(log, name)
            config = (await js.consumer_info(STREAM, name)).config
            assert bool(config.headers_only) == (name != ANALYTICS)
            assert (config.max_ack_pending == MAX_WAITING_BODIES) == (name == ANALYTICS)
    assert (got[MEMORY], got[EXTRACTION]) == (0, 0)
    assert got[ANALYTICS] > 1_000_000


async def test_analytics_fetches_keys_by_the_batch_and_uses_no_worker_thread(
    log: Log, nats_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, asked = player(nats_url, database_url, ["analytics"]), list[Collection[Owner]]()
    rows = KeyTable.rows

    async def counted(self: KeyTable, owners: Collection[Owner], key_ids: Collection[UUID] = ()) -> Any:
        asked.append(owners)
        return await rows(self, owners, key_ids)

    async with play("projectors") as stage:
        await stage.runtime.log.append_many([turn(f"turn {n}", user=f"user {n}") for n in range(1, 6)])
    monkeypatch.setattr(KeyTable, "rows", counted)
    before = set(threading.enumerate())
    async with play() as stage:
        await wait_until_idle(log, ANALYTICS)
        [(characters,)] = await stage.rows("SELECT sum(characters) FROM turnlog_analytics.hourly WHERE role = 'user'")
        started = [thread.name for thread in set(threading.enumerate()) - before]
    assert characters
    assert len(asked) == 1
    assert not [name for name in started if name.startswith("AnyIO")]


def message(tenant: str = "default", thread: str = "t") -> NatsMessage:
    """Returns a delivery with the parts that a durable consumer reads."""

    async def ack() -> None:
        """Acknowledges the message."""

    about = SimpleNamespace(sequence=SimpleNamespace(stream=1), num_delivered=1, timestamp=datetime.now(UTC))
    raw = SimpleNamespace(
        subject=f"turnlog.log.0.{tenant}.{thread}.turn_recorded", metadata=about, data=b"", headers=None
    )
    return cast(NatsMessage, SimpleNamespace(raw_message=raw, body=b"", ack=ack))


async def test_processes_know_of_each_others_answers(log: Log) -> None:
    """Two objects in one process replace two processes, because each receives the other's messages."""
    lane = lane_of("http://localhost:1/v1")
    assert lane is not None

    async def is_heard() -> bool:
        return len(lane._elsewhere) == 2

    async def is_over() -> bool:
        return not lane.is_answering

    async with telling_other_processes(log, Heartbeats()), telling_other_processes(log, Heartbeats()):
        await log.nc.publish(ANSWERING, b"[]")
        with lane.answer():
            await eventually(is_heard)
        await eventually(is_over)
        assert lane._elsewhere == {}
