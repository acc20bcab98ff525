"""jobs, jobs run: what is done by the clock, when it ran last, and doing it now."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, emit, out, progress, run
from turnlog.events.errors import NotFound, TurnlogError

if TYPE_CHECKING:
    from turnlog.consumers.jobs.job import Job
    from turnlog.events.memory_contracts import JobRan

NAMES = ("decay", "compaction", "archive")
JobName = Annotated[str, typer.Argument(help="decay, compaction or archive.", autocompletion=lambda: list(NAMES))]


class JobUnderWay(TurnlogError):
    """Another worker is at this job."""

    code = "job-under-way"


def register(app: typer.Typer) -> None:
    jobs = typer.Typer(help="What is done by the clock.", invoke_without_command=True)
    jobs.callback()(listed)
    jobs.command("run")(run_by_hand)
    app.add_typer(jobs, name="jobs")


def listed(context: typer.Context, json: Json = False) -> None:
    """The jobs with their schedule, their last run and their next."""
    if context.invoked_subcommand is not None:
        return

    async def work(settings: Settings) -> int:
        from turnlog.consumers.jobs.all_jobs import all_jobs
        from turnlog.consumers.jobs.history import last_runs
        from turnlog.consumers.runtime import opened, projecting

        now = datetime.now(UTC)
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("jobs",))
            async with runtime.pool.connection() as conn:
                last = await last_runs(conn, settings.tenant)
        found = [_document(job, last.get(job.name), now, settings) for job in all_jobs(settings)]
        if json:
            emit(found)
        for one in () if json else found:
            out.print(_line(one), markup=False)
        return 0

    run(work, json)


def run_by_hand(
    job: JobName,
    now: Annotated[str | None, typer.Option(help="As if it were this time (ISO 8601); now.")] = None,
    json: Json = False,
) -> None:
    """Run a job now."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.jobs.job import run_now
        from turnlog.consumers.runtime import opened, projecting

        due_at, chosen = _time(now), _find(settings, job)
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle()
            with progress(job) as update:
                ran = await run_now(runtime, chosen, due_at, update)
        if ran is None:
            raise JobUnderWay(f"another worker runs {job} just now; `turnlog jobs` shows when it is done")
        emit(ran) if json else out.print(_ran(ran), markup=False)
        return 1 if ran.errors else 0

    run(work, json)


def _find(settings: Settings, name: str) -> "Job":
    from turnlog.consumers.jobs.all_jobs import all_jobs

    jobs = {job.name: job for job in all_jobs(settings)}
    if name not in jobs:
        raise NotFound(f"there is no job {name!r}; there are {', '.join(jobs)}")
    return jobs[name]


def _time(given: str | None) -> datetime:
    """Raises InvalidTime."""
    from turnlog.consumers.remembering import InvalidTime

    if given is None:
        return datetime.now(UTC)
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidTime(f"{given!r} is no time; write it as in 2026-03-01T03:00:00+00:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _document(job: "Job", last: "JobRan | None", now: datetime, settings: Settings) -> dict[str, Any]:
    return {
        "job": job.name,
        "schedule": job.schedule.expression,
        "timezone": settings.timezone,
        "next_due_at": job.schedule.after(now),
        "last": last.model_dump(mode="json", exclude={"type", "job"}) if last else None,
    }


def _line(one: dict[str, Any]) -> str:
    last = one["last"]
    ran = f"{last['due_at'][:16]}  {_counts(last['counts'])}" if last else "never"
    return f"{one['job']:<11} {one['schedule']:<11} next {one['next_due_at']:%Y-%m-%d %H:%M} UTC  last {ran}"


def _ran(ran: "JobRan") -> str:
    failed = f", {ran.errors} errors (see the log)" if ran.errors else ""
    return f"{ran.job}: {_counts(ran.counts)} in {ran.duration_ms / 1000:.1f} s{failed}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items()) or "nothing"
