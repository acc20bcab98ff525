"""A scheduled job, run once for a due time whoever runs it, and what it did as an event (M4, M6; E 13.5.5)."""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

from turnlog.consumers.jobs.schedule import Schedule
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import Event
from turnlog.events.memory_contracts import JobRan
from turnlog.events.subjects import JOBS, parse_stored
from turnlog.projectors.lag import wait_for
from turnlog.projectors.writer import Connection

SOURCE = "turnlog/jobs"
OnProgress = Callable[[float, float | None], None]


@dataclass(frozen=True, slots=True)
class Done:
    """What a job's work came to. errors: parts of it that failed and are told in the process's log."""

    counts: dict[str, int]
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """work(runtime, due_at, on_progress) must do nothing twice when it is called again after a crash."""

    name: str
    schedule: Schedule
    work: Callable[[Runtime, datetime, OnProgress], Awaitable[Done]]

    @property
    def thread(self) -> str:
        return JOBS + self.name


async def run_owed(runtime: Runtime, job: Job, now: datetime) -> JobRan | None:
    """Runs the job if a due time is owed and nobody else is at it. None: nothing was to do here."""
    async with _alone(runtime, job) as conn:
        if conn is None:
            return None
        due_at = job.schedule.owed(await _last_run(runtime, conn, job, now), now)
        return None if due_at is None else await _run(runtime, job, due_at, lambda done, total: None)


async def run_now(runtime: Runtime, job: Job, due_at: datetime, on_progress: OnProgress) -> JobRan | None:
    """Runs the job by hand, as if it were due at that time. None when another worker is at it."""
    async with _alone(runtime, job) as conn:
        return None if conn is None else await _run(runtime, job, due_at, on_progress)


async def _run(runtime: Runtime, job: Job, due_at: datetime, on_progress: OnProgress) -> JobRan:
    began = time.monotonic()
    done = await job.work(runtime, due_at, on_progress)
    took_ms = (time.monotonic() - began) * 1_000
    ran = JobRan(job=job.name, due_at=due_at, duration_ms=took_ms, counts=done.counts, errors=done.errors)
    tenant = runtime.settings.tenant
    await runtime.log.append(
        Event(
            id=uuid5(NAMESPACE_URL, f"turnlog:job:{tenant}:{job.name}:{due_at.isoformat()}"),
            source=SOURCE,
            time=datetime.now(UTC),
            tenant=tenant,
            thread=job.thread,
            data=ran,
        )
    )
    return ran


async def _last_run(runtime: Runtime, conn: Connection, job: Job, now: datetime) -> datetime | None:
    """The newest due time up to now that was run, with everything that is on the log by now.

    A run by hand as of a time to come is no reason to leave out those until then.
    """
    tenant = runtime.settings.tenant
    if head := await runtime.log.thread_head(tenant, job.thread):
        partition = parse_stored((await runtime.log.stored(head)).subject).partition
        await wait_for(conn, ("jobs",), partition, head)
    rows = await conn.execute(
        "SELECT max(due_at) FROM job_runs WHERE tenant = %s AND thread_id = %s AND due_at <= %s",
        (tenant, job.thread, now),
    )
    found = await rows.fetchone()
    return found[0] if found else None


@contextlib.asynccontextmanager
async def _alone(runtime: Runtime, job: Job) -> AsyncIterator[Connection | None]:
    """A connection that holds the job's lock, or None; a dead worker's lock ends with its connection."""
    name = f"{job.thread}/{runtime.settings.tenant}"
    async with runtime.pool.connection() as conn:
        rows = await conn.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 4))", (name,))
        if await rows.fetchone() != (True,):
            yield None
            return
        try:
            yield conn
        finally:
            await conn.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 4))", (name,))
