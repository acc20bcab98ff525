"""The last run of each job."""

from turnlog.events.memory_contracts import JobRan
from turnlog.projectors.writer import Connection


async def last_runs(conn: Connection, tenant: str) -> dict[str, JobRan]:
    """By the job's name, the one that was run last."""
    rows = await conn.execute(
        "SELECT DISTINCT ON (job) job, due_at, duration_ms, counts, errors FROM job_runs WHERE tenant = %s "
        "ORDER BY job, ran_at DESC",
        (tenant,),
    )
    return {
        job: JobRan(job=job, due_at=due_at, duration_ms=duration_ms, counts=counts, errors=errors)
        for job, due_at, duration_ms, counts, errors in await rows.fetchall()
    }
