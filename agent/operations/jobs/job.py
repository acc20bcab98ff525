"""Runs scheduled jobs once per due time, across all workers, and records each run as an event."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

import psycopg

from turnlog.agent.models.errors import ModelError
from turnlog.agent.operations.jobs.schedule import Schedule
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, JobRan
from turnlog.events.errors import TurnlogError
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.progress import OnProgress, no_progress
from turnlog.events.subjects import JOBS
from turnlog.events.tasks import pause
from turnlog.projectors.engine.locks import LockFor, work_lock
from turnlog.projectors.engine.writer import Connection

logger = logging.getLogger("turnlog.consumers")
SOURCE = "turnlog/jobs"
LOOK_AGAIN_S = 60.0  # because the clock may be changed, or a worker that ran the job may have died


async def last_runs(conn: Connection, tenant: str) -> dict[str, JobRan]:
    """Returns the last run of each job, by name."""
    rows = await conn.execute(
        "SELECT DISTINCT ON (job) job, due_at, duration_ms, counts, errors FROM job_runs WHERE tenant = %s "
        "ORDER BY job, ran_at DESC",
        (tenant,),
    )
    return {
        job: JobRan(job=job, due_at=due_at, duration_ms=duration_ms, counts=counts, errors=errors)
        for job, due_at, duration_ms, counts, errors in await rows.fetchall()
    }


class JobUnderWay(TurnlogError):
    """Another worker runs this job now."""

    code = "job-under-way"


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a job. errors: number of parts that failed; the process's log shows them."""

    counts: dict[str, int]
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A scheduled job. work(runtime, due_at, on_progress) must be idempotent, because it is called again after a crash.
    It must report progress at least every few minutes, otherwise it counts as hung."""

    name: str
    schedule: Schedule
    work: Callable[[Runtime, datetime, OnProgress], Awaitable[Done]]

    @property
    def thread(self) -> str:
        return JOBS + self.name


async def run_owed(runtime: Runtime, job: Job, now: datetime, on_progress: OnProgress = no_progress) -> JobRan | None:
    """Runs the job if a due time was not run yet and no other worker is running the job. Returns None if nothing was
    run."""
    async with _alone(runtime, job) as conn:
        if conn is None:
            return None
        due_at = job.schedule.owed(await _last_run(runtime, conn, job, now), now)
        return None if due_at is None else await _run(runtime, job, due_at, on_progress)


async def run_now(runtime: Runtime, job: Job, due_at: datetime, on_progress: OnProgress) -> JobRan:
    """Runs the job on request, as if it were due at that time. Raises JobUnderWay."""
    async with _alone(runtime, job) as conn:
        if conn is None:
            raise JobUnderWay(f"another worker is running {job.name}; `turnlog jobs` shows when it is done")
        return await _run(runtime, job, due_at, on_progress)


async def _run(runtime: Runtime, job: Job, due_at: datetime, on_progress: OnProgress) -> JobRan:
    began = time.monotonic()
    done = await job.work(runtime, due_at, on_progress)
    took_ms = (time.monotonic() - began) * 1_000
    ran = JobRan(job=job.name, due_at=due_at, duration_ms=took_ms, counts=done.counts, errors=done.errors)
    tenant = runtime.settings.tenant
    event_id = uuid5(NAMESPACE_URL, f"turnlog:job:{tenant}:{job.name}:{due_at.isoformat()}")
    await runtime.log.append(Event(id=event_id, source=SOURCE, tenant=tenant, thread=job.thread, data=ran))
    return ran


async def _last_run(runtime: Runtime, conn: Connection, job: Job, now: datetime) -> datetime | None:
    """Returns the latest due time up to now that was run, from rows that are up to date with the log.

    A run that was requested for a future time is ignored, so that the due times until then are still run.
    """
    tenant = runtime.settings.tenant
    await runtime.wait_until_thread_projected(tenant, job.thread, ("jobs",))
    rows = await conn.execute(
        "SELECT max(due_at) FROM job_runs WHERE tenant = %s AND thread_id = %s AND due_at <= %s",
        (tenant, job.thread, now),
    )
    row = await rows.fetchone()
    return row[0] if row else None


@contextlib.asynccontextmanager
async def _alone(runtime: Runtime, job: Job) -> AsyncIterator[Connection | None]:
    """Yields a connection that holds the job's lock, or None if another worker holds it."""
    name = f"{job.thread}/{runtime.settings.tenant}"
    async with runtime.pool.connection() as conn, work_lock(conn, LockFor.JOB, name) as held:
        yield conn if held else None


async def keep_jobs(
    runtime: Runtime,
    jobs: Sequence[Job],
    stop: asyncio.Event,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    beat: Heartbeat | None = None,
) -> None:
    """Runs due jobs in order until `stop` is set; a failure is logged and retried later. Progress of a job counts as a
    beat of the loop."""

    def alive(_done: float = 0, _total: float | None = None) -> None:
        if beat is not None:
            beat.beat()

    while not stop.is_set():
        for job in jobs:
            alive()
            await _try(runtime, job, clock(), alive)
        soonest = min(job.schedule.after(clock()) for job in jobs)
        wait_s = min(LOOK_AGAIN_S, max(0.0, (soonest - clock()).total_seconds()))
        await pause(stop, wait_s)


async def _try(runtime: Runtime, job: Job, now: datetime, on_progress: OnProgress) -> None:
    try:
        ran = await run_owed(runtime, job, now, on_progress)
    except (ModelError, TurnlogError, psycopg.Error, OSError) as error:
        logger.warning("job %s failed and is tried again: %s", job.name, error)
        return
    except Exception as error:  # a defect in one job stops neither the others nor the loop
        logger.error("job %s failed and is tried again: %s", job.name, type(error).__name__)
        logger.debug("job %s failed here", job.name, exc_info=error)
        return
    if ran is not None:
        logger.info("job %s of %s: %s, %d errors", job.name, ran.due_at.isoformat(), ran.counts, ran.errors)
