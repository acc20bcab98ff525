"""The commands `jobs` and `jobs run`: list scheduled jobs with their last runs, and run one now."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from turnlog.agent.counting import counted
from turnlog.agent.operations.jobs import job_states
from turnlog.consumers.cli.console import Result
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.remembering import InvalidTime
from turnlog.consumers.cli.runner import Runtime, command, listed
from turnlog.consumers.cli.text_tables import table

NAMES = ("retention", "decay", "compaction", "archive", "caches")
JobName = Annotated[
    str, typer.Argument(help="retention, decay, compaction, archive or caches.", autocompletion=lambda: list(NAMES))
]


app = commands()
below = group(app, "jobs", "Scheduled jobs.")


@listed(below, tenant=False)
async def list_(rt: Runtime) -> Result:
    """List the jobs with their schedules, last runs and next runs."""
    return table(await job_states.list_jobs(rt), _COLUMNS, document=_document)


@command(below, "run", tenant=False, checks=lambda now: _time(now))
async def run_by_hand(
    rt: Runtime,
    job: JobName,
    now: Annotated[str | None, typer.Option(help="Run as if it were this time (ISO 8601). Default: now.")] = None,
) -> Result:
    """Run a job now."""
    with progress(job) as update:
        ran = await job_states.run_job(rt, job, _time(now), update)
    failed = f", {counted(ran.errors, 'error')} (see the log)" if ran.errors else ""
    said = f"{ran.job}: {_counts(ran.counts)} in {ran.duration_ms / 1000:.1f} s{failed}"
    return Result(ran, said, code=int(bool(ran.errors)))


def _time(text: str | None) -> datetime:
    """Returns the given time, in UTC if it has no offset; now for None. Raises InvalidTime."""
    if text is None:
        return datetime.now(UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTime(f"{text!r} is not a time; write it as in 2026-03-01T03:00:00+00:00") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _document(state: "job_states.JobState") -> dict[str, Any]:
    return {
        "job": state.job,
        "schedule": state.schedule,
        "timezone": state.timezone,
        "next_due_at": state.next_due_at,
        "last": state.last.model_dump(mode="json", exclude={"type", "job"}) if state.last else None,
    }


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items()) or "nothing"


_COLUMNS: dict[str, Callable[["job_states.JobState"], Any]] = {
    "JOB": lambda state: state.job,
    "SCHEDULE": lambda state: state.schedule,
    "NEXT (UTC)": lambda state: f"{state.next_due_at:%F %H:%M}",
    "LAST (UTC)": lambda state: f"{state.last.due_at:%F %H:%M}" if state.last else "never",
    "IT DID": lambda state: _counts(state.last.counts) if state.last else "",
}
