"""The role `jobs`: runs jobs when they are due, and those that came due while nothing ran."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import psycopg

from turnlog.agent.jobs.job import Job, run_owed
from turnlog.agent.models.errors import ModelError
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import TurnlogError

logger = logging.getLogger("turnlog.consumers")
LOOK_AGAIN_S = 60.0  # the clock may be changed, and a worker that held the job may have died


def utc_now() -> datetime:
    return datetime.now(UTC)


async def keep_jobs(
    runtime: Runtime, jobs: Sequence[Job], stop: asyncio.Event, clock: Callable[[], datetime] = utc_now
) -> None:
    """Runs due jobs in order until stop; a failure is logged and retried later."""
    while not stop.is_set():
        for job in jobs:
            await _try(runtime, job, clock())
        soonest = min(job.schedule.after(clock()) for job in jobs)
        wait_s = min(LOOK_AGAIN_S, max(0.0, (soonest - clock()).total_seconds()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await stop.wait()


async def _try(runtime: Runtime, job: Job, now: datetime) -> None:
    try:
        ran = await run_owed(runtime, job, now)
    except (ModelError, TurnlogError, psycopg.Error, OSError) as error:
        logger.warning("job %s failed and is tried again: %s", job.name, error)
        return
    except Exception as error:  # a defect in one job stops neither the others nor the loop
        logger.error("job %s failed and is tried again: %s", job.name, type(error).__name__)
        logger.debug("job %s failed here", job.name, exc_info=error)
        return
    if ran is not None:
        logger.info("job %s of %s: %s, %d errors", job.name, ran.due_at.isoformat(), ran.counts, ran.errors)
