"""Workers divide the partitions of a log among them, and take over from one that is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from conftest import TestServers
from helpers.sample_events import turn
from helpers.servers import eventually, rows

from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import lag, wait_for
from turnlog.projectors.engine.sharing import Share
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.messages import MESSAGES

PARTITIONS = 8


@dataclass(frozen=True, slots=True)
class Worker:
    share: Share
    runners: Sequence[Runner]

    @property
    def holds(self) -> int:
        return len(self.share.held)


@contextlib.asynccontextmanager
async def working(log: Log, database_url: str) -> AsyncIterator[Worker]:
    share, stop = Share(database_url, PARTITIONS), asyncio.Event()
    runners = [Runner(log, database_url, [MESSAGES], at, share) for at in range(PARTITIONS)]
    tasks = [asyncio.create_task(one.run()) for one in runners] + [asyncio.create_task(share.run(stop))]
    try:
        yield Worker(share, runners)
    finally:
        stop.set()
        for runner in runners:
            runner.stop()
        await asyncio.gather(*tasks)


async def held(*workers: Worker) -> list[int]:
    return sorted(worker.holds for worker in workers)


async def test_workers_divide_the_partitions_and_take_over_from_one_that_ends(nats_url: str, database_url: str) -> None:
    log = await Log.connect(nats_url, StreamOptions(partitions=PARTITIONS))
    try:
        async with working(log, database_url) as first:

            async def alone() -> bool:
                return await held(first) == [8]

            await eventually(alone)
            async with working(log, database_url) as second, working(log, database_url) as third:

                async def divided() -> bool:
                    return await held(first, second, third) == [2, 3, 3]

                await eventually(divided)
                await log.append_many([turn(str(n), thread=f"t{n}") for n in range(200)])
            await eventually(alone)
            async with await connect(database_url) as conn:
                for partition in range(PARTITIONS):
                    await wait_for(conn, ("messages",), partition, await log.partition_head(partition))
                assert await rows(conn, "SELECT count(*) FROM messages") == [(200,)]
    finally:
        await log.close()


async def test_workers_of_another_database_do_not_count(servers: TestServers, database_url: str) -> None:
    mine, other, stop = Share(database_url, PARTITIONS), Share(servers.database_url, PARTITIONS), asyncio.Event()
    counting = [asyncio.create_task(share.run(stop)) for share in (mine, other)]

    async def each_may_take_all() -> bool:
        return all(share.take(partition) for share in (mine, other) for partition in range(PARTITIONS))

    await eventually(each_may_take_all)
    stop.set()
    await asyncio.gather(*counting)


async def test_partition_that_no_worker_took_shows_in_the_lag(nats_url: str, database_url: str, db: Connection) -> None:
    log = await Log.connect(nats_url, StreamOptions(partitions=2))
    runner = Runner(log, database_url, [MESSAGES], 0)
    task = asyncio.create_task(runner.run())
    try:
        await log.append_many([turn(thread=f"t{n}") for n in range(50)])
        await wait_for(db, ("messages",), 0, await log.partition_head(0))
        taken, missed = await lag(log, db, stalled_after_s=0.0)
        assert (taken.partition, taken.behind, taken.stalled) == (0, 0, False)
        assert (missed.partition, missed.behind, missed.stalled) == (1, await log.partition_head(1), True)
        assert missed.seconds_since_moved is None
    finally:
        runner.stop()
        await task
        await log.close()
