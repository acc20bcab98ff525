"""Measures the fastest possible reader: a plain nats-py pull consumer that fetches messages without decoding them."""

import time

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from turnlog.events.log import Log
from turnlog.events.subjects import STREAM, partition_filter


async def raw_read(log: Log, count: int) -> float:
    """Returns the seconds to fetch the first `count` messages."""
    js = log.nc.jetstream()
    subscription = await js.pull_subscribe(
        partition_filter(0),
        stream=STREAM,
        config=ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, inactive_threshold=60),
    )
    started, left = time.perf_counter(), count
    while left:
        left -= len(await subscription.fetch(min(1_000, left), timeout=30))
    took = time.perf_counter() - started
    await subscription.unsubscribe()
    return took
