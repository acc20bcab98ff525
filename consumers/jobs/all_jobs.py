"""The jobs there are, with their schedules from the settings."""

from turnlog.agent.settings import Settings
from turnlog.consumers.jobs.archiving import archive_cold
from turnlog.consumers.jobs.compaction import compact
from turnlog.consumers.jobs.decay import decay
from turnlog.consumers.jobs.job import Job
from turnlog.consumers.jobs.schedule import Schedule


def all_jobs(settings: Settings) -> tuple[Job, ...]:
    """In the order in which they run when several are due. Raises InvalidSchedule."""
    zone = settings.timezone
    return (
        Job("decay", Schedule.of(settings.decay_at, zone), decay),
        Job("compaction", Schedule.of(settings.compaction_at, zone), compact),
        Job("archive", Schedule.of(settings.archive_at, zone), archive_cold),
    )
