"""Projector processes rebuild the rows of an earlier version while other requests are served."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest
from conftest import Settled
from helpers.api import Serve
from helpers.sample_events import turn
from helpers.servers import eventually, rows, unlike_a_rebuild
from helpers.stage import MemoryServer

from turnlog.agent.operations.checkup import checkup
from turnlog.consumers import runtime
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.log import Log
from turnlog.projectors.engine.database import connect, take_locks
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection

pytestmark = pytest.mark.slow


@pytest.fixture
async def projected(log: Log, running_projectors: Runner, settled: Settled) -> None:
    """Appends ten turns of thread t and projects them by a runner that then stops."""
    await log.append_many([turn(f"corgi number {n}", "user" if n % 2 else "assistant", user="ann") for n in range(10)])
    await settled()
    running_projectors.stop()


async def age(db: Connection, *names: str) -> None:
    """Changes the version of projections, as if an earlier version had projected them."""
    aged = "UPDATE projection_positions SET code_version = code_version - 1 WHERE projection = ANY(%s)"
    await db.execute(aged, (list(names),))


@contextlib.asynccontextmanager
async def another_process_rebuilds(database_url: str, name: str) -> AsyncIterator[None]:
    """Makes it look as if another process rebuilds the projection while the block runs."""
    async with await connect(database_url) as conn:
        assert await take_locks(conn, [name], "build", -1)
        yield


async def test_while_vectors_are_rebuilt_all_is_served_and_says_so(
    serve: Serve, db: Connection, database_url: str, projected: None
) -> None:
    await age(db, "vectors")
    with MemoryServer() as model:
        settings = {"api_base_url": model.url, "model": "m", "stalled_after_s": 0.1}
        async with contextlib.AsyncExitStack() as stack:
            async with another_process_rebuilds(database_url, "vectors"):
                api = await stack.enter_async_context(serve("agent", **settings))
                ann = await stack.enter_async_context(api.client("ann"))
                answer = await ann.post("/api/threads/t/answers", json={"message": "A beagle?"})
                assert answer.status_code == 201, answer.text
                ready = await ann.get("/health/ready")
                assert (ready.status_code, ready.json()["stalled"]) == (200, [])
                assert ready.json()["rebuilding"] == [{"projection": "vectors", "percent": 0, "served": True}]
                recalled = (await ann.post("/api/recall", json={"query": "corgi number 3"})).json()
                assert recalled["items"] and "vectors: being rebuilt" in recalled["degraded"]
                assert "vectors: being rebuilt" in (await ann.get("/api/threads/t/context")).json()["degraded"]

            async def is_rebuilt() -> bool:
                return (await ann.get("/health/ready")).json()["rebuilding"] == []

            await eventually(is_rebuilt)
            recalled = (await ann.post("/api/recall", json={"query": "beagle"})).json()
            assert "beagle" in recalled["items"][0]["text"] and "rebuilt" not in (recalled["degraded"] or "")
            assert await unlike_a_rebuild(api.runtime.log, database_url) == {}


async def test_while_messages_are_rebuilt_turns_are_acknowledged_and_readiness_names_them(
    serve: Serve, db: Connection, database_url: str, projected: None
) -> None:
    await age(db, "messages")
    async with contextlib.AsyncExitStack() as stack:
        async with another_process_rebuilds(database_url, "messages"):
            api = await stack.enter_async_context(serve())
            ann = await stack.enter_async_context(api.client("ann"))
            ready = await ann.get("/health/ready")
            assert (ready.status_code, ready.json()["ready"]) == (503, False)
            assert ready.json()["rebuilding"] == [{"projection": "messages", "percent": 0, "served": False}]
            said = {"turns": [{"role": "user", "content": "hello"}]}
            assert (await ann.post("/api/threads/new/turns", json=said)).status_code == 201
            findings = await checkup(api.runtime.settings, lambda: opened(api.runtime.settings))
            assert "of another version of turnlog: messages" in str(findings)
        turns = (await ann.get("/api/threads/new/turns")).json()["items"]
        assert [turn["content"] for turn in turns] == ["hello"]
        assert (await ann.get("/health/ready")).status_code == 200


async def test_rows_that_a_rebuild_would_lose_stay_and_doctor_says_what_to_do(
    serve: Serve, db: Connection, projected: None, caplog: pytest.LogCaptureFixture
) -> None:
    """`turnlog log adopt` kept these rows."""
    await age(db, "messages")
    await db.execute("UPDATE projected_log SET kept_through = 7")
    async with serve() as api:

        async def is_refused() -> bool:
            return "rows of an earlier version stay for now" in caplog.text

        await eventually(is_refused)
        findings = {
            finding.check: finding
            for finding in await checkup(api.runtime.settings, lambda: opened(api.runtime.settings))
        }
        assert not findings["projections"].ok
        assert "would lose rows up to sequence 7" in findings["projections"].detail
        assert "turnlog log rebuild" in findings["projections"].fix
    assert len(await rows(db, "SELECT FROM messages WHERE thread_id = 't'")) == 10


async def test_the_loops_that_rebuild_and_share_partitions_are_started_again(
    serve: Serve, db: Connection, database_url: str, projected: None
) -> None:
    async with serve() as api:
        await age(db, "vectors")
        async with (
            another_process_rebuilds(database_url, "vectors"),
            opened(api.runtime.settings) as worker,
            projecting(worker, shared=True),
        ):
            beats = {loop.loop: loop for loop in worker.heartbeats.loops}
            for name in ("projectors-share", "projectors-upgrade"):
                beat = beats[name]

                def tasks(name: str = name) -> list["asyncio.Task[None]"]:
                    return [task for task in asyncio.all_tasks() if task.get_name() == name]

                async def runs() -> bool:
                    return len(tasks()) == 1

                async def is_red(beat: Heartbeat = beat) -> bool:
                    return beat.fault is not None

                async def is_green(beat: Heartbeat = beat) -> bool:
                    return beat.fault is None

                await eventually(runs)
                tasks()[0].cancel()
                await eventually(is_red)
                await eventually(is_green)


async def test_a_rebuild_that_hangs_is_a_fault_until_it_goes_on(
    serve: Serve, db: Connection, database_url: str, projected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "UPGRADE_ROUND_S", 2.0)
    await age(db, "vectors")
    async with another_process_rebuilds(database_url, "vectors"), serve() as api, await connect(database_url) as other:
        beat = next(loop for loop in api.runtime.heartbeats.loops if loop.loop == "projectors-upgrade")

        async def is_red() -> bool:
            return beat.fault is not None

        async def is_green() -> bool:
            return beat.fault is None

        async with other.transaction():
            await other.execute("LOCK projection_positions IN SHARE MODE")  # the next try waits for this lock
            await eventually(is_red)
        await eventually(is_green)


async def test_one_of_two_processes_rebuilds_older_and_new_read_models_and_neither_rebuilds_newer_ones(
    serve: Serve, db: Connection, database_url: str, projected: None, caplog: pytest.LogCaptureFixture
) -> None:
    await age(db, "vectors", "topics")
    await db.execute("DELETE FROM projection_positions WHERE projection = 'agents'")
    await db.execute("UPDATE projection_positions SET code_version = 99 WHERE projection = 'usage'")
    caplog.set_level(logging.WARNING, "turnlog.projectors")
    async with serve() as api, opened(api.runtime.settings) as second, projecting(second):

        async def are_rebuilt() -> bool:
            return not await rows(db, "SELECT FROM projection_positions WHERE build <> 'live'")

        await eventually(are_rebuilt)
        await asyncio.gather(
            *(process.wait_until_projected(names=("vectors", "agents", "topics")) for process in (api.runtime, second))
        )
    done = [record.getMessage() for record in caplog.records if record.getMessage().startswith("rebuilt ")]
    assert [message.partition(":")[0] for message in done] == ["rebuilt agents", "rebuilt vectors, topics"]
    assert await rows(db, "SELECT code_version FROM projection_positions WHERE projection = 'usage'") == [(99,)]
