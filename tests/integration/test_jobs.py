"""Scheduled jobs run late after a downtime, once on two workers, and completely after a crash."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from helpers.sample_events import MAY_8, memory_event, memory_of
from helpers.servers import eventually, rows
from prometheus_client import REGISTRY

from turnlog.agent.memory.deciding.policy import Policy, fate
from turnlog.agent.operations.gauges import measure
from turnlog.agent.operations.jobs.caches import clean_caches
from turnlog.agent.operations.jobs.decay import decay
from turnlog.agent.operations.jobs.job import Done, Job, OnProgress, keep_jobs, last_runs, run_now, run_owed
from turnlog.agent.operations.jobs.job_states import DecayStats, decay_stats
from turnlog.agent.operations.jobs.schedule import Schedule
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.roles import JOBS_ROUND_S
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import JobRan
from turnlog.events.errors import LogUnavailable
from turnlog.events.heartbeats import Heartbeats
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.memories.policy_lookup import policy_rows

NIGHTLY = Schedule.of("0 3 * * *", "UTC")
DUE = NIGHTLY.after(MAY_8)


@pytest.fixture
async def runtime(nats_url: str, database_url: str) -> AsyncIterator[Runtime]:
    async with opened(Settings(nats_url=nats_url, database_url=database_url)) as made, projecting(made):
        yield made


class Work:
    """Counts its calls and blocks each until `go` is set."""

    def __init__(self) -> None:
        self.calls: list[datetime] = []
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None

    async def __call__(self, runtime: Runtime, due_at: datetime, on_progress: OnProgress) -> Done:
        self.calls.append(due_at)
        await self.go.wait()
        if self.error:
            raise self.error
        return Done({"done": len(self.calls)})


def job_of(work: Work) -> Job:
    return Job("decay", NIGHTLY, work)


async def ran(runtime: Runtime) -> list[JobRan]:
    payloads = [recorded.event.data async for recorded in runtime.log.read_thread("default", "jobs/decay")]
    return [data for data in payloads if isinstance(data, JobRan)]


async def test_a_run_is_an_event_and_its_due_time_is_not_run_again(runtime: Runtime) -> None:
    work = Work()
    assert await run_owed(runtime, job_of(work), DUE + timedelta(hours=1)) is not None
    assert await run_owed(runtime, job_of(work), DUE + timedelta(hours=2)) is None
    assert [(run.due_at, run.counts) for run in await ran(runtime)] == [(DUE, {"done": 1})]
    async with runtime.pool.connection() as conn:
        assert (await last_runs(conn, "default"))["decay"].due_at == DUE


async def test_a_job_that_was_due_several_times_without_a_worker_runs_once(runtime: Runtime) -> None:
    work = Work()
    await run_owed(runtime, job_of(work), DUE)
    await run_owed(runtime, job_of(work), DUE + timedelta(days=5, hours=1))
    assert work.calls == [DUE, DUE + timedelta(days=5)]


async def test_a_manual_run_as_of_a_future_time_skips_no_run_before_it(runtime: Runtime) -> None:
    work = Work()
    await run_now(runtime, job_of(work), DUE + timedelta(days=400), lambda done, total: None)
    await run_owed(runtime, job_of(work), DUE)
    await runtime.wait_until_projected()
    assert work.calls == [DUE + timedelta(days=400), DUE]
    async with runtime.pool.connection() as conn:
        assert (await last_runs(conn, "default"))["decay"].due_at == DUE


async def test_two_workers_run_a_due_time_once(runtime: Runtime, nats_url: str, database_url: str) -> None:
    work = Work()
    work.go.clear()
    async with opened(Settings(nats_url=nats_url, database_url=database_url)) as other:
        first = asyncio.create_task(run_owed(runtime, job_of(work), DUE))

        async def has_begun() -> bool:
            return bool(work.calls)

        await eventually(has_begun)
        assert await run_owed(other, job_of(work), DUE) is None
        work.go.set()
        assert await first is not None
        assert await run_owed(other, job_of(work), DUE) is None
    assert len(work.calls) == len(await ran(runtime)) == 1


async def test_an_interrupted_run_is_still_due(runtime: Runtime) -> None:
    work = Work()
    work.error = LogUnavailable("the log is away")
    with pytest.raises(LogUnavailable):
        await run_owed(runtime, job_of(work), DUE)
    work.error = None
    assert await run_owed(runtime, job_of(work), DUE) is not None
    assert work.calls == [DUE, DUE]


@pytest.mark.parametrize("error", [LogUnavailable("the log is away"), ValueError("a defect")])
async def test_the_scheduler_runs_due_jobs_continues_after_a_failure_and_stops_at_once(
    runtime: Runtime, error: Exception
) -> None:
    failing, working, stop = Work(), Work(), asyncio.Event()
    failing.error = error
    jobs = (Job("compaction", NIGHTLY, failing), job_of(working))
    keeper = asyncio.create_task(keep_jobs(runtime, jobs, stop, lambda: DUE))

    async def has_run() -> bool:
        return bool(await ran(runtime))

    await eventually(has_run)
    stop.set()
    await keeper
    assert failing.calls == working.calls == [DUE]


async def test_a_job_that_hangs_is_a_fault_until_it_reports_progress(runtime: Runtime) -> None:
    """A job that reports progress is not a fault, even if it takes long."""
    report, hung, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(runtime: Runtime, due_at: datetime, on_progress: OnProgress) -> Done:
        while True:
            hung.set()
            await report.wait()
            report.clear()
            on_progress(1, None)

    async with Heartbeats().running(
        "jobs", "jobs", lambda beat: keep_jobs(runtime, (Job("decay", NIGHTLY, work),), stop, beat=beat), stop
    ) as beat:
        await hung.wait()
        beat.round_s = JOBS_ROUND_S
        beat.at -= JOBS_ROUND_S
        assert str(beat.fault).startswith("no round for")
        report.set()

        async def has_progress() -> bool:
            return beat.fault is None

        await eventually(has_progress)


async def test_decay_and_caches_report_progress(runtime: Runtime) -> None:
    await remember(runtime, "ann", {1: 400})
    reported = list[float]()
    for work in (decay, clean_caches):
        await work(runtime, DUE, lambda done, total: reported.append(done))
    assert reported == [1, 1, 2, 3, 4]


async def remember(runtime: Runtime, user: str, ages: dict[int, int]) -> None:
    """Adds a memory for each number, said this many days before DUE."""
    events = [
        memory_event(memory_of(number, valid_from=DUE - timedelta(days=days), importance=0.9), user)
        for number, days in ages.items()
    ]
    await runtime.log.append_many(events)
    await runtime.wait_until_projected()


async def test_the_daily_job_applies_exactly_the_policy(runtime: Runtime) -> None:
    await remember(runtime, "ann", {1: 0, 2: 30, 3: 181, 4: 366})
    await remember(runtime, "bob", {5: 2, 6: 400})
    policy = Policy()
    async with runtime.pool.connection() as conn:
        expected = {row.id: fate(row, DUE, policy) for row in [row async for row in policy_rows(conn)]}
    done = await decay(runtime, DUE, lambda done, total: None)
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        kept = dict(await rows(conn, "SELECT id, status FROM memories"))
    assert done == Done({"looked_at": 6, "archived": 1, "deleted": 2, "expired": 0})
    assert {id_ for id_, action in expected.items() if action == "delete"} == expected.keys() - kept.keys()
    assert {id_ for id_, action in expected.items() if action == "archive"} == {
        k for k, v in kept.items() if v == "archived"
    }


async def test_the_daily_job_run_twice_changes_nothing_more(runtime: Runtime) -> None:
    await remember(runtime, "ann", {1: 0, 3: 181, 4: 366})
    await decay(runtime, DUE, lambda done, total: None)
    await runtime.wait_until_projected()
    head = await runtime.log.thread_head("default", memory_thread("ann"))
    again = await decay(runtime, DUE, lambda done, total: None)
    assert again.counts == {"looked_at": 2, "archived": 0, "deleted": 0, "expired": 0}
    assert await runtime.log.thread_head("default", memory_thread("ann")) == head


async def test_a_time_to_live_ends_a_memory(runtime: Runtime) -> None:
    gone = memory_of(1, valid_from=MAY_8, expires_at=DUE - timedelta(hours=1))
    await runtime.log.append(memory_event(gone, "ann"))
    await runtime.wait_until_projected()
    assert (await decay(runtime, DUE, lambda done, total: None)).counts["expired"] == 1
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        assert await rows(conn, "SELECT status, closed_reason FROM memories WHERE id = %s", UUID(int=1)) == [
            ("closed", "expired")
        ]


async def test_a_run_by_hand_is_as_of_the_time_it_is_given(runtime: Runtime) -> None:
    await remember(runtime, "ann", {1: 0})
    job = Job("decay", NIGHTLY, decay)
    made = await run_now(runtime, job, DUE + timedelta(days=400), lambda done, total: None)
    assert made.counts["deleted"] == 1


async def test_statistics_show_the_decayed_memories_and_the_effect_of_the_next_run(runtime: Runtime) -> None:
    now = datetime.now(UTC)
    ages = {"ann": (0, 30, 200, 400), "bob": (0,)}
    for user, days in ages.items():
        said = [memory_of(n, valid_from=now - timedelta(days=n), importance=0.9) for n in days]
        await runtime.log.append_many([memory_event(memory, user) for memory in said])
    stats = await decay_stats(runtime, "default", "ann")
    assert stats == DecayStats(
        total_memories=4,
        archived=0,
        by_tier={"WORKING": 1, "SHORT": 1, "LONG": 2, "ARCHIVE": 0},
        average_importance=pytest.approx((0.9 + 0.6 + 0.1 + 0.1) / 4, abs=0.01),
        average_freshness=pytest.approx((1 + 0.0498) / 4, abs=0.01),
        next_due_at=stats.next_due_at,
        scheduled_for_archive=1,
        scheduled_for_delete=1,
        scheduled_for_expiry=0,
    )
    assert now < stats.next_due_at
    await decay(runtime, stats.next_due_at, lambda done, total: None)
    after = await decay_stats(runtime, "default", "ann")
    assert (after.total_memories, after.archived, after.scheduled_for_archive, after.scheduled_for_delete) == (
        *(3, 1),
        *(0, 0),
    )
    assert (await decay_stats(runtime, "default")).total_memories == 4
    await measure(runtime)
    gauge = {tier: REGISTRY.get_sample_value("memory_tier_distribution", {"tier": tier}) for tier in after.by_tier}
    assert gauge == (await decay_stats(runtime, "default")).by_tier
    empty = await decay_stats(runtime, "default", "nobody")
    assert (empty.total_memories, empty.average_importance, empty.scheduled_for_archive) == (0, 0, 0)
