"""Lists conversations without recent turns, archives them in files, and restores them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.operations.jobs.archiving import archive_older, cold_ones
from turnlog.agent.operations.jobs.job import Job, run_now
from turnlog.agent.operations.jobs.schedule import Schedule
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.progress import OnProgress, no_progress
from turnlog.events.subjects import check_place
from turnlog.projectors.models.conversation.thread_lookup import Cold, is_there


class NoAge(TurnlogError):
    """Neither the call nor a setting names the age at which conversations are archived."""

    code = "no-age"


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of archiving conversations. archived: number of archived ones. left_out: number of those that got a
    turn meanwhile. errors: number of failures; the process's log shows them."""

    archived: int
    left_out: int
    errors: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of restoring a conversation. restored: False if it was not in the archive."""

    thread: str
    restored: bool


async def list_cold_conversations(runtime: Runtime, older_than_days: int | None = None) -> list[Cold]:
    """Returns the conversations of all tenants that archive_conversations would move. Raises NoAge."""
    before = _before(runtime, older_than_days)
    async with runtime.reading() as conn:
        return [cold async for cold in cold_ones(conn, before)]


async def archive_conversations(
    runtime: Runtime, older_than_days: int | None = None, on_progress: OnProgress = no_progress
) -> Archived:
    """Moves conversations of all tenants that had no turn for a number of days into files; reading a conversation
    restores it.

    older_than_days: None means MEMORY_ARCHIVE_THREADS_AFTER_DAYS. Raises NoAge, JobUnderWay while the scheduled job
    runs.
    """
    before = _before(runtime, older_than_days)
    await runtime.wait_until_projected()
    schedule = Schedule.of(runtime.settings.archive_at, runtime.settings.timezone)
    job = Job("archive", schedule, lambda at, due_at, on_progress: archive_older(at, before, on_progress))
    ran = await run_now(runtime, job, datetime.now(UTC), on_progress)
    await runtime.wait_until_projected()
    return Archived(ran.counts["archived"], ran.counts["left_out"], ran.errors, runtime.settings.archive)


async def restore_conversation(runtime: Runtime, tenant: str, thread: str) -> Restored:
    """Restores a conversation if it is in the archive. Raises InvalidToken, NotFound."""
    check_place(tenant, thread)
    async with runtime.reading("messages", "archives", "thread_activity") as conn:
        if not await is_there(conn, tenant, thread):
            raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
        return Restored(thread, await restored_if_archived(runtime, conn, tenant, thread))


def _before(runtime: Runtime, older_than_days: int | None) -> datetime:
    """Returns the time limit: a conversation without a turn since then may be archived. Raises NoAge."""
    days = runtime.settings.archive_threads_after_days or None if older_than_days is None else older_than_days
    if days is None:
        raise NoAge("give --older-than DAYS, or set MEMORY_ARCHIVE_THREADS_AFTER_DAYS")
    return datetime.now(UTC) - timedelta(days=days)
