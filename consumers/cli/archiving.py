"""archive, restore: cold conversations into files, and back."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, Tenant, emit, out, progress, run, tenant_of
from turnlog.consumers.cli.jobs import JobUnderWay
from turnlog.events.errors import NotFound, TurnlogError

if TYPE_CHECKING:
    from turnlog.consumers.runtime import Runtime
    from turnlog.events.memory_contracts import JobRan


class NoAge(TurnlogError):
    """Nothing says from which age on conversations are to be archived."""

    code = "no-age"


def register(app: typer.Typer) -> None:
    app.command()(archive)
    app.command()(restore)


def archive(
    older_than: Annotated[
        int | None,
        typer.Option(min=0, max=36_500, help="Days without a turn; MEMORY_ARCHIVE_THREADS_AFTER_DAYS."),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only show which conversations.")] = False,
    json: Json = False,
) -> None:
    """Move cold conversations of all tenants into files; whoever reads one brings it back."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened, projecting

        days = settings.archive_threads_after_days or None if older_than is None else older_than
        if days is None:
            raise NoAge("give --older-than DAYS, or set MEMORY_ARCHIVE_THREADS_AFTER_DAYS")
        before = datetime.now(UTC) - timedelta(days=days)
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle()
            if dry_run:
                return await _shown(runtime, before, json)
            ran = await _archived(runtime, before)
            await runtime.settle()
        if json:
            emit({**ran.counts, "errors": ran.errors, "folder": str(settings.archive)})
        else:
            left = f", left out {ran.counts['left_out']:,}" if ran.counts["left_out"] else ""
            failed = f", {ran.errors:,} errors (see the log)" if ran.errors else ""
            out.print(f"archived {ran.counts['archived']:,} to {settings.archive}{left}{failed}", markup=False)
        return 1 if ran.errors else 0

    run(work, json)


def restore(thread: Annotated[str, typer.Argument()], tenant: Tenant = None, json: Json = False) -> None:
    """Bring a conversation back from the archive."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.archiving import restored_if_archived
        from turnlog.consumers.runtime import opened, projecting
        from turnlog.projectors.thread_activity import is_there

        place = (tenant_of(settings, tenant), thread)
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("messages", "archives", "thread_activity"))
            async with runtime.pool.connection() as conn:
                if not await is_there(conn, *place):
                    raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
                is_back = await restored_if_archived(runtime, conn, *place)
        if json:
            emit({"thread": thread, "restored": is_back})
        else:
            out.print(f"{thread} {'is back' if is_back else 'is not in the archive'}", markup=False)
        return 0

    run(work, json)


async def _archived(runtime: "Runtime", before: datetime) -> "JobRan":
    """As the job does it, so that it never runs beside the job."""
    from turnlog.consumers.jobs.archiving import archive_older
    from turnlog.consumers.jobs.job import Job, run_now
    from turnlog.consumers.jobs.schedule import Schedule

    schedule = Schedule.of(runtime.settings.archive_at, runtime.settings.timezone)
    job = Job("archive", schedule, lambda at, due_at, on_progress: archive_older(at, before, on_progress))
    with progress("archiving") as update:
        ran = await run_now(runtime, job, datetime.now(UTC), update)
    if ran is None:
        raise JobUnderWay("another worker archives just now; `turnlog jobs` shows when it is done")
    return ran


async def _shown(runtime: "Runtime", before: datetime, json: bool) -> int:
    from turnlog.consumers.jobs.archiving import cold_ones

    async with runtime.pool.connection() as conn:
        found = [cold async for cold in cold_ones(conn, before)]
    if json:
        emit(found)
        return 0
    for cold in found:
        place = f"{cold.last_active_at:%Y-%m-%d %H:%M}  {cold.message_count:>7,}  {cold.thread}"
        out.print(place if cold.tenant == runtime.settings.tenant else f"{place}  ({cold.tenant})", markup=False)
    out.print(f"{len(found):,} would be archived", markup=False)
    return 0
