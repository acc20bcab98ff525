"""Lists scheduled jobs with their last and next runs, runs a job now, and tells what decay will do next."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args

from turnlog.agent.memory.deciding.policy import Policy, Tier, fate, score
from turnlog.agent.operations.jobs.archiving import archive_cold
from turnlog.agent.operations.jobs.caches import clean_caches
from turnlog.agent.operations.jobs.compaction import compact
from turnlog.agent.operations.jobs.decay import decay
from turnlog.agent.operations.jobs.job import Done, Job, last_runs, run_now
from turnlog.agent.operations.jobs.schedule import Schedule
from turnlog.agent.privacy.redaction.retention import let_old_turns_go
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.events.contracts import JobRan
from turnlog.events.errors import NotFound
from turnlog.events.progress import OnProgress
from turnlog.events.subjects import check_place, is_memory_thread
from turnlog.projectors.models.memories.policy_lookup import policy_rows


@dataclass(frozen=True, slots=True)
class JobState:
    """A job, its schedule and its last run. schedule: a cron expression in `timezone`. next_due_at: UTC. last: None
    before the first run."""

    job: str
    schedule: str
    timezone: str
    next_due_at: datetime
    last: JobRan | None


@dataclass(frozen=True, slots=True)
class DecayStats:
    """Counts and averages of the memories in use or archived, as of now. averages: 0 to 1, and 0 without memories.
    scheduled: what the next run of the decay job does with them, if they are not said or read until then."""

    total_memories: int
    archived: int
    by_tier: dict[Tier, int]
    average_importance: float
    average_freshness: float
    next_due_at: datetime
    scheduled_for_archive: int
    scheduled_for_delete: int
    scheduled_for_expiry: int


def all_jobs(settings: Settings) -> tuple[Job, ...]:
    """Returns the jobs with their schedules, in the order in which they run when several are due. Raises
    InvalidSchedule."""
    zone = settings.timezone
    return (
        Job("retention", Schedule.of(settings.retention_at, zone), _let_old_turns_go),
        Job("decay", Schedule.of(settings.decay_at, zone), decay),
        Job("compaction", Schedule.of(settings.compaction_at, zone), compact),
        Job("archive", Schedule.of(settings.archive_at, zone), archive_cold),
        Job("caches", Schedule.of(settings.caches_at, zone), clean_caches),
    )


async def _let_old_turns_go(runtime: Runtime, due_at: datetime, on_progress: OnProgress) -> Done:
    return Done(dict(await let_old_turns_go(runtime, due_at, on_progress)))


async def list_jobs(runtime: Runtime) -> list[JobState]:
    settings, now = runtime.settings, datetime.now(UTC)
    async with runtime.reading("jobs") as conn:
        last = await last_runs(conn, settings.tenant)
    return [
        JobState(job.name, job.schedule.expression, settings.timezone, job.schedule.after(now), last.get(job.name))
        for job in all_jobs(settings)
    ]


async def run_job(runtime: Runtime, name: str, due_at: datetime, on_progress: OnProgress) -> JobRan:
    """Runs a job as if it were due at that time. Raises NotFound for an unknown name, JobUnderWay."""
    jobs = {job.name: job for job in all_jobs(runtime.settings)}
    if name not in jobs:
        raise NotFound(f"there is no job {name!r}; there are {', '.join(jobs)}")
    await runtime.wait_until_projected()
    return await run_now(runtime, jobs[name], due_at, on_progress)


async def decay_stats(runtime: Runtime, tenant: str, user: str | None = None) -> DecayStats:
    """Returns the statistics of a tenant's memories, or of one user's. Raises InvalidToken."""
    check_place(tenant, user=user)
    settings, now = runtime.settings, datetime.now(UTC)
    policy, due_at = Policy.of(settings), Schedule.of(settings.decay_at, settings.timezone).after(now)
    await runtime.wait_until_projected(names=("memories",))
    counts: Counter[str] = Counter()
    importance = freshness = 0.0
    async with runtime.pool.connection() as conn:
        async for row in policy_rows(conn, tenant, user):
            if not is_memory_thread(row.thread, row.user):  # a trial derivation
                continue
            scored, due = score(row, now, policy), fate(row, due_at, policy)
            if row.status == "archived":
                due = "keep" if due == "archive" else due
            counts.update(("all", row.status, scored.tier, due))
            importance, freshness = importance + scored.importance, freshness + scored.freshness
    count = max(counts["all"], 1)
    return DecayStats(
        total_memories=counts["all"],
        archived=counts["archived"],
        by_tier={tier: counts[tier] for tier in get_args(Tier)},
        average_importance=importance / count,
        average_freshness=freshness / count,
        next_due_at=due_at,
        scheduled_for_archive=counts["archive"],
        scheduled_for_delete=counts["delete"],
        scheduled_for_expiry=counts["expire"],
    )
