"""jobs, jobs run: what is done by the clock, when it ran last, and doing it now."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.counting import counted
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.jobs import JobState
    from turnlog.events.contracts import JobRan

NAMES = ("decay", "compaction", "archive", "caches")
JobName = Annotated[
    str, typer.Argument(help="decay, compaction, archive or caches.", autocompletion=lambda: list(NAMES))
]


def register(app: typer.Typer) -> None:
    jobs = group(app, "jobs", "Scheduled jobs.", listed, tenant=False)
    add(jobs, run_by_hand, "run", tenant=False)


def listed() -> None:
    """The jobs with their schedule, their last run and their next."""
    from turnlog.agent.use_cases.jobs import list_jobs

    serve(
        list_jobs,
        lambda found: map(_line, found),
        document=lambda found: [_document(one) for one in found],
        projecting=False,
    )


def run_by_hand(
    job: JobName, now: Annotated[str | None, typer.Option(help="Run as of this time (ISO 8601); default: now.")] = None
) -> None:
    """Run a job now."""
    from turnlog.agent.use_cases.jobs import run_job
    from turnlog.consumers.cli.progress_bars import progress

    async def use(runtime: "Runtime") -> "JobRan":
        with progress(job) as update:
            return await run_job(runtime, job, _time(now), update)

    serve(use, lambda ran: [_ran(ran)], code=lambda ran: int(bool(ran.errors)), first=lambda: _time(now))


def _time(given: str | None) -> datetime:
    """Raises InvalidTime."""
    from turnlog.consumers.cli.remembering import InvalidTime

    if given is None:
        return datetime.now(UTC)
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidTime(f"{given!r} is not a time; write it as in 2026-03-01T03:00:00+00:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _document(one: "JobState") -> dict[str, Any]:
    return {
        "job": one.job,
        "schedule": one.schedule,
        "timezone": one.timezone,
        "next_due_at": one.next_due_at,
        "last": one.last.model_dump(mode="json", exclude={"type", "job"}) if one.last else None,
    }


def _line(one: "JobState") -> str:
    last = f"for {one.last.due_at:%Y-%m-%d %H:%M} UTC  {_counts(one.last.counts)}" if one.last else "never"
    return f"{one.job:<11} {one.schedule:<11} next {one.next_due_at:%Y-%m-%d %H:%M} UTC  last {last}"


def _ran(ran: "JobRan") -> str:
    failed = f", {counted(ran.errors, 'error')} (see the log)" if ran.errors else ""
    return f"{ran.job}: {_counts(ran.counts)} in {ran.duration_ms / 1000:.1f} s{failed}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items()) or "nothing"
