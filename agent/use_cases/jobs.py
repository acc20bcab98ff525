"""Scheduled jobs: when each ran last, when it is due, and running one now (M4, M6)."""

from dataclasses import dataclass
from datetime import UTC, datetime

from turnlog.agent.jobs.archiving import archive_cold
from turnlog.agent.jobs.compaction import compact
from turnlog.agent.jobs.decay import decay
from turnlog.agent.jobs.job import Job, JobUnderWay, last_runs, run_now
from turnlog.agent.jobs.schedule import Schedule
from turnlog.agent.progress import OnProgress
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.events.contracts import JobRan
from turnlog.events.errors import NotFound


@dataclass(frozen=True, slots=True)
class JobState:
    """schedule: a cron expression in `timezone`. next_due_at: UTC. last: the last run, None where there is none."""

    job: str
    schedule: str
    timezone: str
    next_due_at: datetime
    last: JobRan | None


def all_jobs(settings: Settings) -> tuple[Job, ...]:
    """In the order in which they run when several are due, with the settings' schedules. Raises InvalidSchedule."""
    zone = settings.timezone
    return (
        Job("decay", Schedule.of(settings.decay_at, zone), decay),
        Job("compaction", Schedule.of(settings.compaction_at, zone), compact),
        Job("archive", Schedule.of(settings.archive_at, zone), archive_cold),
    )


async def list_jobs(runtime: Runtime) -> list[JobState]:
    settings, now = runtime.settings, datetime.now(UTC)
    await runtime.settle(names=("jobs",))
    async with runtime.pool.connection() as conn:
        last = await last_runs(conn, settings.tenant)
    return [
        JobState(job.name, job.schedule.expression, settings.timezone, job.schedule.after(now), last.get(job.name))
        for job in all_jobs(settings)
    ]


async def run_job(runtime: Runtime, name: str, due_at: datetime, progress: OnProgress) -> JobRan:
    """Runs a job as if it were due at that time. Raises NotFound for an unknown name, JobUnderWay."""
    jobs = {job.name: job for job in all_jobs(runtime.settings)}
    if name not in jobs:
        raise NotFound(f"there is no job {name!r}; there are {', '.join(jobs)}")
    await runtime.settle()
    ran = await run_now(runtime, jobs[name], due_at, progress)
    if ran is None:
        raise JobUnderWay(f"another worker runs {name} just now; `turnlog jobs` shows when it is done")
    return ran
