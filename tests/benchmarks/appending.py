"""Measures append_many against nats-py, which publishes the same bytes, already encoded, in the same atomic batches."""

import gc
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from nats.aio.client import Client

from tests.benchmarks.measuring import Row, interleaved, per_second, ratio
from tests.benchmarks.stand import Stand
from turnlog.events.append import MAX_BATCH
from turnlog.events.contracts import Event
from turnlog.events.publish import outgoing


@dataclass(frozen=True, slots=True)
class Ready:
    """An encoded message that is ready to send."""

    subject: str
    body: bytes
    headers: dict[str, str]


async def measure(stand: Stand) -> list[Row]:
    events = list(stand.conversations.events(stand.sized(50_000, 10_000)))
    batches = ready(events)
    gc.collect()
    gc.freeze()  # so that the garbage collector does not search the benchmark's own events

    async def ours() -> float:
        async with stand.empty_log() as log:
            started = time.perf_counter()
            await log.append_many(events)
            return len(events) / (time.perf_counter() - started)

    async def floor() -> float:
        async with stand.empty_log() as log:
            started = time.perf_counter()
            for batch in batches:
                await publish(log.nc, batch)
            return len(events) / (time.perf_counter() - started)

    mine, theirs = await interleaved(stand.rounds, ours, floor)
    gc.unfreeze()
    factor, spread = ratio(mine, theirs)
    method = (
        f"{len(events):,} events ({stand.conversations.described}), from Event objects to the last acknowledgement. "
        f"Floor: nats-py, bytes and headers made beforehand, atomic batches of {MAX_BATCH:,}."
    )
    return [
        Row("append_many", per_second(median(mine)), per_second(median(theirs)), factor, spread, (">=", 0.7), method)
    ]


def ready(events: Sequence[Event]) -> list[list[Ready]]:
    """Returns batches of MAX_BATCH messages. Their batch ids are new, so each list can be published once in each
    log."""
    batches = []
    for start in range(0, len(events), MAX_BATCH):
        outs = [outgoing(event, None, 8 * 1024 * 1024) for event in events[start : start + MAX_BATCH]]
        batch_id = uuid.uuid4().hex
        batch = [
            Ready(o.subject, o.body, {**o.headers, "Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)})
            for number, o in enumerate(outs, 1)
        ]
        batch[-1].headers["Nats-Batch-Commit"] = "1"
        batches.append(batch)
    return batches


async def publish(nc: Client, batch: Sequence[Ready]) -> None:
    for message in batch[:-1]:
        await nc.publish(message.subject, message.body, headers=message.headers)
    last = batch[-1]
    answer = await nc.request(last.subject, last.body, timeout=10, headers=last.headers)
    assert b'"error"' not in answer.data, answer.data
