"""A rebuild that several processes share: the rows of one alone, and a clean end whatever happens to one (L6)."""

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest
from helpers.key_rings import destroy_keys
from helpers.sample_events import EVERY_CONTRACT, event, turn
from helpers.servers import eventually
from helpers.stage import Play, Stage, player

from turnlog.agent.use_cases.operations import rebuild_workers
from turnlog.events.contracts import ARCHIVING, REMOVALS, ThreadDeleted, ThreadForked
from turnlog.projectors.engine.database import connect
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.build import Progress, RebuildStopped, ignore
from turnlog.projectors.rebuild.rebuild import rebuild_several
from turnlog.projectors.rebuild.verify import verify_several
from turnlog.projectors.rebuild.workers import WorkerFailed, Workers

LEFT_OVER = (
    "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'turnlog\\_%' UNION ALL "
    "SELECT build FROM projection_positions WHERE build <> 'live' UNION ALL "
    "SELECT build FROM dead_letters WHERE build <> 'live'"
)


@pytest.fixture
def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ["projectors"])


@pytest.fixture
async def stage(play: Play) -> AsyncIterator[Stage]:
    """Eight threads of four users with an event of every type, forks, a parked thread, an erased user, a duplicate."""
    users = ("ann", "bob", "cho", "dan")
    every = [data for data in EVERY_CONTRACT if data.type not in REMOVALS | ARCHIVING]
    async with play() as stage:
        for number in range(8):
            about = {"user": users[number % 4]}
            thread = f"t{number}"
            await stage.runtime.log.append_many([turn(f"{at} about essays", thread=thread, **about) for at in range(9)])
            await stage.runtime.log.append_many([event(data, thread, at, **about) for at, data in enumerate(every)])
        fork = ThreadForked(parent="t1", at_seq=5, message_count=5, user_message_count=5, assistant_message_count=0)
        forked = [event(fork, "fork"), turn("in the fork", thread="fork", user="bob")]
        await stage.runtime.log.append_many([*forked, event(ThreadDeleted(), "t3")])
        [first] = [one for one in await stage.events("t1") if one.type == "turn_recorded"][:1]
        await stage.twice(first.model_copy(update={"thread": "t2"}))
        await stage.bad("turn_recorded", "t5")
        await stage.runtime.log.append(turn("behind it", thread="t5", user="bob"))
        await stage.runtime.settle()
        async with stage.runtime.pool.connection() as conn:
            await destroy_keys(stage.runtime.log, conn, "dan")
        yield stage


def workers(stage: Stage, count: int) -> Workers:
    return replace(rebuild_workers(stage.runtime, count), events_each=1)


async def rebuilt(stage: Stage, count: int) -> int:
    """Rebuilds everything; returns the number of events."""
    runtime = stage.runtime
    return (await rebuild_several(runtime.log, runtime.database_url, PROJECTIONS, ignore, workers(stage, count)))[
        0
    ].events


async def every_row(stage: Stage) -> dict[str, list[object]]:
    tables = [table.name for projection in PROJECTIONS for table in projection.tables]
    found = {name: await stage.rows(f"SELECT t::text FROM {name} t ORDER BY 1") for name in tables}
    found["parked"] = await stage.rows("SELECT projection, seq, reason, error FROM dead_letters ORDER BY 1, 2")
    found["positions"] = await stage.rows("SELECT projection, build, position FROM projection_positions ORDER BY 1, 2")
    return found


async def test_several_workers_make_the_rows_of_one(stage: Stage) -> None:
    events = await rebuilt(stage, 1)
    by_one = await every_row(stage)
    assert await rebuilt(stage, 3) == events
    assert await every_row(stage) == by_one
    assert len(by_one["parked"]) > 0 and len(by_one["messages"]) > 50
    assert await stage.rows(LEFT_OVER) == []


async def test_several_workers_verify_what_one_projected(stage: Stage) -> None:
    await rebuilt(stage, 1)  # the erased user's words are gone from the rows
    runtime = stage.runtime
    found = await verify_several(runtime.log, runtime.database_url, PROJECTIONS, ignore, workers(stage, 2))
    assert [one.projection for one in found if not one.clean] == []
    await stage.rows("DELETE FROM messages WHERE seq = 3 RETURNING seq")
    found = await verify_several(runtime.log, runtime.database_url, PROJECTIONS, ignore, workers(stage, 2))
    assert [one.projection for one in found if not one.clean] == ["messages"]
    assert await stage.rows(LEFT_OVER) == []


async def test_what_no_live_projection_has_read_yet_is_applied_in_the_order_of_the_log(stage: Stage) -> None:
    """Which event of an id is the first is only known as far as event_ids goes; the rest is left to one process."""
    events = await rebuilt(stage, 1)
    before = await every_row(stage)
    stage.runtime.runners[0].stop()
    for table in ("event_ids", "projection_positions"):
        await stage.rows(f"DELETE FROM {table} RETURNING 1")
    assert await rebuilt(stage, 3) == events
    assert await every_row(stage) == before


async def test_the_progress_of_all_workers_is_added_up(stage: Stage) -> None:
    seen: list[Progress] = []
    runtime = stage.runtime
    [done, *_] = await rebuild_several(runtime.log, runtime.database_url, PROJECTIONS, seen.append, workers(stage, 2))
    assert [one.events for one in seen] == sorted(one.events for one in seen)
    assert (seen[-1].events, seen[-1].remaining) == (done.events, 0)


async def test_a_worker_that_meets_poison_stops_the_rebuild_and_names_the_event(stage: Stage) -> None:
    unknown = b'{"specversion":"1.0","type":"turnlog.mood_changed","thread":"new"}'
    await stage.runtime.log.nc.jetstream().publish("turnlog.default.new.mood_changed", unknown)
    await stage.runtime.settle()
    await stage.rows("DELETE FROM dead_letters RETURNING 1")
    before = await every_row(stage)
    with pytest.raises(RebuildStopped, match=r"cannot apply the event at sequence \d+: unknown-event-type"):
        await rebuilt(stage, 2)
    assert await every_row(stage) == before
    assert await stage.rows(LEFT_OVER) == []


async def test_a_worker_that_is_killed_ends_the_rebuild_and_leaves_the_live_tables_as_they_were(stage: Stage) -> None:
    before = await every_row(stage)
    async with held_up(stage):
        rebuilding = asyncio.create_task(rebuilt(stage, 2))
        await eventually(lambda: are_waiting(stage, 2))
        [killed, other] = worker_processes()
        killed.send_signal(signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="exit code -9; the live tables are unchanged"):
            await asyncio.wait_for(rebuilding, 30)
        assert not other.is_running()
    assert await stage.rows(LEFT_OVER) == []
    assert await every_row(stage) == before
    assert await rebuilt(stage, 2) > 100


async def test_a_rebuild_that_is_cancelled_leaves_no_worker_behind(stage: Stage) -> None:
    async with held_up(stage):
        rebuilding = asyncio.create_task(rebuilt(stage, 2))
        await eventually(lambda: are_waiting(stage, 2))
        both = worker_processes()
        rebuilding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(rebuilding, 30)
        assert [one.pid for one in both if one.is_running()] == []
    assert await stage.rows(LEFT_OVER) == []


async def test_a_worker_ends_when_the_process_that_started_it_is_gone() -> None:
    command = "from turnlog.projectors.rebuild.workers import main; main()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", command, stdin=PIPE, stdout=PIPE)
    assert (await process.communicate(b""), process.returncode) == ((b"", None), 1)


@contextlib.asynccontextmanager
async def held_up(stage: Stage) -> AsyncIterator[None]:
    """Workers wait at their first batch while the block runs."""
    async with await connect(stage.runtime.database_url) as conn, conn.transaction():
        await conn.execute("LOCK TABLE event_ids IN EXCLUSIVE MODE")
        yield


def worker_processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [one for one in children if any("rebuild.workers" in part for part in one.cmdline())]


async def are_waiting(stage: Stage, count: int) -> bool:
    query = "SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%event_ids%'"
    return await stage.rows(f"{query} AND datname = current_database()") == [(count,)]
