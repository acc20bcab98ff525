"""Workers divide the partitions of a log among themselves and take over those of a worker that has ended."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from conftest import TestServers
from helpers.sample_events import turn
from helpers.servers import eventually, rows

from turnlog.consumers.sync_bridge import LoopThread
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.projectors.engine import database
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import lag, wait_for
from turnlog.projectors.engine.sharing import Share
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.messages import MESSAGES

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
    tasks = [asyncio.create_task(runner.run()) for runner in runners] + [asyncio.create_task(share.run(stop))]
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
                    await wait_for(conn, ("messages",), partition, await log.partition_head(partition), timeout_s=180.0)
                assert await rows(conn, "SELECT count(*) FROM messages") == [(200,)]
    finally:
        await log.close()


@pytest.mark.parametrize("is_shared", [False, True])
async def test_partitions_of_a_process_whose_event_loop_is_blocked_are_taken_over(
    nats_url: str, database_url: str, db: Connection, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    """Its projectors run in a separate loop, which a callback blocks, as a user's program may block its loop."""
    monkeypatch.setattr(database, "FROZEN_S", 1.5)
    frozen, go_on = LoopThread("frozen"), threading.Event()

    async def opened_runners() -> tuple[Log, list[Runner], list[asyncio.Task[None]], asyncio.Event]:
        log, stop = await Log.connect(nats_url, StreamOptions(partitions=PARTITIONS)), asyncio.Event()
        share = Share(database_url, PARTITIONS) if is_shared else None
        runners = [Runner(log, database_url, [MESSAGES], at, share) for at in range(PARTITIONS)]
        tasks = [asyncio.create_task(runner.run()) for runner in runners]
        if share is not None:
            tasks.append(asyncio.create_task(share.run(stop)))
        return log, runners, tasks, stop

    async def end(log: Log, runners: list[Runner], tasks: list[asyncio.Task[None]], stop: asyncio.Event) -> None:
        stop.set()
        for runner in runners:
            runner.stop()
        await asyncio.gather(*tasks)
        await log.close()

    async def projected(log: Log) -> None:
        for partition in range(PARTITIONS):
            await wait_for(db, ("messages",), partition, await log.partition_head(partition), timeout_s=180.0)

    theirs = await asyncio.to_thread(frozen.run, opened_runners())
    mine = await opened_runners()
    try:
        await mine[0].append_many([turn(thread=f"t{n}") for n in range(20)])
        await projected(mine[0])
        frozen.loop.call_soon_threadsafe(go_on.wait)
        await mine[0].append_many([turn(thread=f"t{n}") for n in range(20)])
        await projected(mine[0])
        assert await rows(db, "SELECT count(*) FROM messages") == [(40,)]
    finally:
        go_on.set()
        await end(*mine)
        await asyncio.to_thread(frozen.run, end(*theirs))
        frozen.close()


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
        await wait_for(db, ("messages",), 0, await log.partition_head(0), timeout_s=180.0)
        taken, missed = await lag(log, db, stalled_after_s=0.0)
        assert (taken.partition, taken.behind, taken.stalled) == (0, 0, False)
        assert (missed.partition, missed.behind, missed.stalled) == (1, await log.partition_head(1), True)
        assert missed.seconds_since_moved is None
    finally:
        runner.stop()
        await task
        await log.close()
