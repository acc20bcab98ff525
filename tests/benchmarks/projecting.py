"""Measures the live projection of thread activity and messages, compared with only reading the same log."""

from statistics import median

from tests.benchmarks.measuring import Row, interleaved, per_second, ratio
from tests.benchmarks.reading import raw_read
from tests.benchmarks.stand import Stand, fill, project
from turnlog.projectors.engine.database import connect
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.conversation.thread_activity import THREAD_ACTIVITY


async def measure(stand: Stand) -> list[Row]:
    async with stand.empty_log() as log:
        count = await fill(log, stand.conversations.events(stand.sized(50_000, 10_000)))

        async def ours() -> float:
            async with stand.fresh_database() as url, await connect(url) as watcher:
                return count / await project(log, url, watcher, (THREAD_ACTIVITY, MESSAGES))

        async def floor() -> float:
            return count / await raw_read(log, count)

        mine, theirs = await interleaved(stand.rounds, ours, floor)
    factor, spread = ratio(mine, theirs)
    method = (
        f"{count:,} events in the log ({stand.conversations.described}), both projections in one runner, from its "
        "start until their positions are at the head. Floor: a nats-py pull consumer, fetch(1000), nothing decoded."
    )
    return [
        Row(
            "live projection of activity and messages",
            per_second(median(mine)),
            per_second(median(theirs)),
            factor,
            spread,
            (">=", 0.5),
            method,
        )
    ]
