"""Workers divide the partitions of a log among them, and take over from one that is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from conftest import TestServers
from places import eventually, now, rows

from turnlog.events.contracts import Event, TurnRecorded
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.projectors.database import connect
from turnlog.projectors.engine import Runner
from turnlog.projectors.lag import wait_for
from turnlog.projectors.messages import MESSAGES
from turnlog.projectors.sharing import Share

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
                await log.append_many(
                    [
                        Event(time=now(), thread=f"t{n}", data=TurnRecorded(role="user", content=str(n)))
                        for n in range(200)
                    ]
                )
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
