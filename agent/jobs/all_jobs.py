"""All scheduled jobs, with their schedules from the settings."""

from turnlog.agent.jobs.archiving import archive_cold
from turnlog.agent.jobs.compaction import compact
from turnlog.agent.jobs.decay import decay
from turnlog.agent.jobs.job import Job
from turnlog.agent.jobs.schedule import Schedule
from turnlog.agent.settings import Settings


def all_jobs(settings: Settings) -> tuple[Job, ...]:
    """In the order in which they run when several are due. Raises InvalidSchedule."""
    zone = settings.timezone
    return (
        Job("decay", Schedule.of(settings.decay_at, zone), decay),
        Job("compaction", Schedule.of(settings.compaction_at, zone), compact),
        Job("archive", Schedule.of(settings.archive_at, zone), archive_cold),
    )
