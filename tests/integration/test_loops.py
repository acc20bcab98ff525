"""If any loop of a process with all roles ends, readiness turns red and the loop is restarted automatically."""

import asyncio
import contextlib
import json
import math
import re
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest
from helpers.api import Api, Serve
from helpers.sample_events import turn
from helpers.servers import eventually
from helpers.stage import MemoryServer
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy
from prometheus_client import REGISTRY

from turnlog.agent.operations import role_processes
from turnlog.agent.operations.checkup import checkup
from turnlog.agent.operations.gauges import measure, measuring
from turnlog.agent.operations.log_identity import rebuild_from_log
from turnlog.agent.operations.role_processes import deaths, processes
from turnlog.agent.settings import Settings
from turnlog.consumers.servers import background
from turnlog.consumers.workers import app
from turnlog.consumers.workers.durable_consumer import Delivery, DurableConsumer
from turnlog.consumers.workers.durables import Durable
from turnlog.events.heartbeats import Heartbeat, Heartbeats
from turnlog.events.progress import no_progress
from turnlog.events.subjects import STREAM
from turnlog.events.tasks import cancel

pytestmark = pytest.mark.slow

CONSUMERS = ("memory", "segments", "extraction", "contradictions", "profiles", "agent", "analytics")
LOOPS = {
    *CONSUMERS,
    *(f"{name}-durable" for name in CONSUMERS),
    *("projectors-0", "embedder", "extraction-sweep", "jobs", "keys-follow", "same-log", "webhooks"),
    *("gauges", "heartbeat", "event-loop", "lanes"),
    *("reactors-subscriptions", "agent-subscriptions", "analytics-subscriptions"),
}
FETCHES = {f"{name}-fetch" for name in CONSUMERS}
ELSEWHERE = {"projectors-share", "projectors-upgrade", "keep-servers"}  # loops that other tests end
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


@asynccontextmanager
async def everything(serve: Serve, **settings: object) -> AsyncIterator[Api]:
    with MemoryServer() as model:
        options = {"api_base_url": model.url, "model": "m", **settings}
        async with serve("reactors", "agent", "analytics", "jobs", **options) as api, measuring(api.runtime):
            yield api


async def readiness(client: httpx2.AsyncClient) -> dict[str, list[str]]:
    report: dict[str, list[str]] = (await client.get("/health/ready")).json()
    return report


async def is_whole(client: httpx2.AsyncClient) -> bool:
    return (await readiness(client))["broken"] == []


@contextlib.contextmanager
def noted_problems() -> Iterator[set[str]]:
    """Yields the names of the loops that have had a problem in the block, even a short one."""
    names, show = set[str](), Heartbeat._show

    def noting(beat: Heartbeat, problem: str | None) -> None:
        if problem is not None:
            names.add(beat.loop)
        show(beat, problem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Heartbeat, "_show", noting)
        yield names


@asynccontextmanager
async def red_then_green(api: Api, client: httpx2.AsyncClient, names: Iterable[str]) -> AsyncIterator[None]:
    """Waits after the block until readiness has shown a fault of all of these loops since the block began, and then
    until no loop has a fault."""
    missing, shown, report = set(names), set[str](), dict[str, list[str]]()

    async def have_failed() -> bool:
        missing.difference_update(problems, (beat.loop for beat in api.runtime.heartbeats.loops if beat.fault))
        return not missing

    async def are_shown() -> bool:
        shown.update((await readiness(client))["broken"])
        return bool(shown & set(names))

    async def is_green() -> bool:
        report.update(await readiness(client))
        return not any(report[part] for part in ("broken", "stuck", "stalled"))

    with noted_problems() as problems:
        seen = asyncio.create_task(eventually(are_shown))
        yield
        with contextlib.suppress(AssertionError):
            await asyncio.gather(eventually(have_failed), seen)
    assert missing == set()
    assert shown & set(names)
    with contextlib.suppress(AssertionError):
        await eventually(is_green)
    assert {part: report[part] for part in ("broken", "stuck", "stalled")} == {"broken": [], "stuck": [], "stalled": []}


async def running(name: str) -> "list[asyncio.Task[None]]":
    """Returns the task of a loop as soon as it runs. A task of a runtime from an earlier test may still be ending."""
    tasks = list[asyncio.Task[None]]()

    async def runs() -> bool:
        tasks[:] = [task for task in asyncio.all_tasks() if task.get_name() == name]
        return bool(tasks)

    await eventually(runs)
    return tasks


def listed_loops() -> set[str]:
    section = PAGE.read_text("utf-8").partition("### Loops")[2].partition("\n## ")[0]
    return {
        name
        for row in section.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(.+?)`", row.split("|")[1])
    }


async def test_every_loop_that_ends_is_named_and_started_again(serve: Serve) -> None:
    async with everything(serve) as api, api.client() as ann:
        assert {beat.loop for beat in api.runtime.heartbeats.loops} == {*LOOPS, *FETCHES, "api"}
        assert listed_loops() == {*LOOPS, *FETCHES, *ELSEWHERE, "api"}
        async with red_then_green(api, ann, LOOPS):
            await asyncio.gather(*[cancel(*await running(name)) for name in LOOPS])
        assert (await ann.post("/api/threads/t/answers", json={"message": "hello"})).status_code == 201
        await eventually(lambda: is_whole(ann))


async def test_fetches_that_end_are_subscribed_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FETCH_ROUND_S", 2.5)
    before = asyncio.all_tasks()  # tasks of other tests
    async with everything(serve) as api, api.client() as ann:
        fetches = list[asyncio.Task[Any]]()

        async def all_run() -> bool:
            fetches[:] = [task for task in asyncio.all_tasks() - before if "_consume_pull" in str(task.get_coro())]
            return len(fetches) == len(FETCHES)

        async def all_end() -> bool:
            for task in fetches:
                task.cancel()  # lost if a message comes at the same time
            return all(task.done() for task in fetches)

        await eventually(all_run)
        async with red_then_green(api, ann, FETCHES):
            await eventually(all_end)
        assert (await ann.post("/api/threads/t/answers", json={"message": "hello"})).status_code == 201


async def test_fetches_that_do_not_come_back_are_an_error_and_stay_red_until_they_do(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "FETCH_ROUND_S", 2.5)
    before = asyncio.all_tasks()
    async with serve("agent") as api, api.client() as ann:

        async def error_follows() -> bool:
            for task in asyncio.all_tasks() - before:
                if "_consume_pull" in str(task.get_coro()):
                    task.cancel()
            return any("agent cannot fetch events" in one.message for one in caplog.records)

        async with red_then_green(api, ann, ["agent-fetch"]):
            await eventually(error_follows)
            assert "agent-fetch" in (await readiness(ann))["broken"]
        levels = [one.levelname for one in caplog.records if one.name == "turnlog.consumers"]
        assert levels[:2] == ["WARNING", "ERROR"]


async def test_a_process_that_had_no_time_to_fetch_subscribes_nothing_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "FETCH_ROUND_S", 1.5)
    async with serve("reactors", "agent", "analytics") as api, api.client() as ann:
        beats = [beat for beat in api.runtime.heartbeats.loops if beat.loop.endswith("-fetch")]

        async def all_fetch() -> bool:
            return all(beat.at > blocked_until for beat in beats)

        for _ in range(2):
            threading.Event().wait(3.0)  # like a machine that gives the process no time
            blocked_until = time.monotonic()
            await eventually(all_fetch)
        assert (await ann.post("/api/threads/t/answers", json={"message": "hello"})).status_code == 201
        assert [one.message for one in caplog.records if one.name == "turnlog.consumers"] == []


async def test_a_consumer_that_nats_sends_nothing_turns_readiness_red(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "LOOK_S", 0.2)
    async with serve("agent") as api, api.client() as ann:

        async def pause_until(year: int) -> None:
            body = json.dumps({"pause_until": f"{year}-01-01T00:00:00Z"}).encode()
            answer = await api.runtime.log.nc.request(f"$JS.API.CONSUMER.PAUSE.{STREAM}.agent", body)
            assert "error" not in json.loads(answer.data)

        await pause_until(9000)
        async with red_then_green(api, ann, ["agent-durable"]):
            asked = asyncio.create_task(ann.post("/api/threads/t/answers", json={"message": "hello"}))

            async def is_red() -> bool:
                return "agent-durable" in (await readiness(ann))["broken"]

            try:
                await eventually(is_red)
            finally:
                await pause_until(2000)
            assert (await asked).status_code == 201


async def test_an_api_that_ends_serves_again_at_its_address(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        tasks = await running("api")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        async with api.client() as bob:  # its connection waits until the next server accepts it
            assert (await bob.get("/health/live")).status_code == 200
        assert (await ann.get("/health/live")).status_code == 200


async def test_a_consumer_whose_progress_reports_stop_is_restarted(
    serve: Serve,
) -> None:
    async with everything(serve) as api, api.client() as ann, red_then_green(api, ann, CONSUMERS):
        for task in asyncio.all_tasks():
            if task.get_name().endswith("-hold"):
                task.cancel()


async def test_deleted_durables_turn_readiness_red_and_are_made_again(serve: Serve) -> None:
    """Questions that were asked while a durable was missing are answered once."""
    async with everything(serve) as api, api.client() as ann:
        js, ask = api.runtime.log.nc.jetstream(), {"message": "hello"}
        assert (await ann.post("/api/threads/t/answers", json=ask)).status_code == 201
        async with red_then_green(api, ann, FETCHES):
            for name in CONSUMERS:
                await js.delete_consumer(STREAM, name)
        assert (await ann.post("/api/threads/t/answers", json=ask)).status_code == 201
        turns = (await ann.get("/api/threads/t/turns")).json()["items"]
        assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2


async def test_a_durable_deleted_while_its_worker_was_stopped_continues_at_its_position(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "LOOK_S", 0.1)
    async with serve("agent") as api, api.client() as ann:
        assert (await ann.post("/api/threads/t/answers", json={"message": "hello"})).status_code == 201

        async def is_noted() -> bool:
            async with api.runtime.pool.connection() as conn:
                row = await (await conn.execute("SELECT position FROM durables WHERE name = 'agent'")).fetchone()
            return row is not None and row[0] > 0

        await eventually(is_noted)
        asked = await api.runtime.log.head()
    async with serve() as api:
        js = api.runtime.log.nc.jetstream()
        await js.delete_consumer(STREAM, "agent")
    async with serve("agent") as api:
        info = await api.runtime.log.nc.jetstream().consumer_info(STREAM, "agent")
        assert 1 < (info.config.opt_start_seq or 0) <= asked + 1


async def test_a_position_noted_while_the_log_is_rebuilt_is_not_that_of_the_new_durable(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker checks the durable between the deletions of its position and of its consumer."""
    looks = list[asyncio.Task[str | None]]()
    delete_consumer = JetStreamContext.delete_consumer

    async def worker_looks_before(js: JetStreamContext, stream: str, consumer: str) -> bool:
        if consumer == durable.consumer.name:
            looks.append(asyncio.create_task(durable.look()))
            await eventually(has_looked_or_waits)
        return await delete_consumer(js, stream, consumer)

    async def has_looked_or_waits() -> bool:
        async with api.runtime.pool.connection() as conn:
            row = await conn.execute("SELECT FROM pg_locks WHERE relation = 'durables'::regclass AND NOT granted")
            return looks[0].done() or await row.fetchone() is not None

    async def no_work(_deliveries: list[Delivery]) -> None: ...

    async with serve() as api:
        pool, js = api.runtime.pool, api.runtime.log.nc.jetstream()
        durable = Durable(DurableConsumer(pool, "analytics", no_work), "turnlog.log.>", DeliverPolicy.ALL, pool, js)
        await api.runtime.log.append(turn("hello"))
        await durable.ensure()
        [message] = await (await js.pull_subscribe_bind("analytics", STREAM)).fetch(1)
        await message.ack_sync()
        monkeypatch.setattr(JetStreamContext, "delete_consumer", worker_looks_before)
        await rebuild_from_log(api.runtime, no_progress)
        await looks[0]
        await durable.ensure()
        assert (await js.consumer_info(STREAM, "analytics")).num_pending == 1


async def test_a_deleted_stream_turns_readiness_red(serve: Serve) -> None:
    async with serve("agent") as api, api.client() as ann:
        await api.runtime.log.nc.jetstream().delete_stream(STREAM)

        async def is_red() -> bool:
            return "projectors-0" in (await readiness(ann)).get("broken", [])

        await eventually(is_red)
        await measure(api.runtime)
        assert (REGISTRY.get_sample_value("turnlog_broken_loops") or 0) > 0


async def test_a_process_that_died_is_missed_until_another_one_plays_its_roles(serve: Serve) -> None:
    gone = 2**22 + 1  # no process has this pid
    died = {"id": "01890000-0000-7000-8000-000000000000", "name": "turnlog-worker-agent", "pid": gone}
    async with serve() as api, api.client() as ann:
        async with api.runtime.pool.connection() as conn:
            await conn.execute(
                "INSERT INTO processes (id, name, host, pid, started_at, roles, loops, beat_at) "
                "VALUES (%(id)s, %(name)s, %(host)s, %(pid)s, 0, ARRAY['agent'], '[]', clock_timestamp())",
                {**died, "host": role_processes._host()},
            )
        response = await ann.get("/health/ready")
        assert (response.status_code, response.json()["died"]) == (
            503,
            [f"turnlog worker agent (pid {gone}) died, nobody plays agent"],
        )
        async with serve("agent"):
            assert (await ann.get("/health/ready")).status_code == 200


async def test_a_process_without_heartbeats_is_missed_on_any_machine(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve() as api:
        async with api.runtime.pool.connection() as conn:
            await conn.execute(
                "INSERT INTO processes (id, name, host, pid, started_at, roles, loops, beat_at) VALUES "
                "(gen_random_uuid(), 'turnlog-worker-jobs', 'elsewhere', 1, 0, ARRAY['jobs'], '[]', now() - "
                "interval '1 minute')"
            )
        [said] = deaths(await processes(api.runtime))
        assert said == "turnlog worker jobs (pid 1 on elsewhere) was last heard of 60 s ago, nobody plays jobs"
        await measure(api.runtime)
        assert REGISTRY.get_sample_value("turnlog_dead_processes") == 1


async def test_a_blocked_event_loop_is_seen_in_the_metrics_and_by_doctor(serve: Serve) -> None:
    async with serve() as api:
        beats = {loop.loop: loop for loop in api.runtime.heartbeats.loops}

        async def goes_round() -> bool:
            return beats["event-loop"].slowest_s > 0

        async def is_seen() -> bool:
            return beats["event-loop"].slowest_s > 0.56

        await eventually(goes_round)
        threading.Event().wait(0.65)  # like a callback that computes
        await eventually(is_seen)
        findings = {
            finding.check: finding for finding in await checkup(api.runtime.settings, lambda: nullcontext(api.runtime))
        }
        assert re.search(r"event loop of .* blocked for [0-9,]+ ms", findings["processes"].detail)
        assert findings["processes"].warning
        told = REGISTRY.get_sample_value("turnlog_event_loop_lag_seconds_sum")
        assert told is not None and told > 0.15


async def test_a_loop_that_watches_the_servers_is_started_again_when_it_ends(tmp_path: Path) -> None:
    beats = Heartbeats()
    async with background.kept_servers(Settings(home=tmp_path), "nats://127.0.0.1:1", beats):
        [beat] = beats.loops
        for task in await running("keep-servers"):
            task.cancel()

        async def is_red() -> bool:
            return beat.fault is not None

        async def is_green() -> bool:
            return beat.fault is None

        await eventually(is_red)
        await eventually(is_green)


def test_a_loop_without_a_round_counts_as_dead(tmp_path: Path) -> None:
    beat = Heartbeat("agent", "agent", asyncio.Event(), round_s=-math.inf)
    assert beat.fault == "no round for 0 s"
    beat.round_s = math.inf
    assert beat.fault is None


async def test_a_loop_that_raises_and_one_that_returns_are_started_again() -> None:
    began, stop, seen = 0, asyncio.Event(), list[str | None]()

    async def loop(beat: Heartbeat) -> None:
        nonlocal began
        began, _ = began + 1, seen.append(beat.problem)
        if began == 1:
            raise ValueError("no")
        if began == 3:
            beat.beat()
            await stop.wait()

    async with Heartbeats(again_s=0.0).running("role", "loop", loop, stop) as beat:

        async def runs() -> bool:
            return began == 3 and beat.fault is None

        await eventually(runs)
    assert seen == [None, "ended and is restarted: ValueError: no", "ended and is restarted: it returned"]
