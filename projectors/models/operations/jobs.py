"""job_runs: the due times at which a scheduled job was run, with its counts and errors."""

from collections.abc import Sequence

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB

from turnlog.events.contracts import REMOVALS, JobRan, Recorded
from turnlog.projectors.engine.changes import Change, Row, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz

job_runs = thread_table(
    "job_runs",
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("due_at", timestamptz(), primary_key=True),
    sa.Column("ran_at", timestamptz(), nullable=False),
    sa.Column("duration_ms", sa.Float, nullable=False),
    sa.Column("counts", JSONB, nullable=False),
    sa.Column("errors", sa.Integer, nullable=False),
)
COLUMNS = tuple(column.name for column in job_runs.columns)


def project(batch: Sequence[Recorded]) -> list[Change]:
    rows: list[Row] = []
    for event in (recorded.event for recorded in batch):
        assert isinstance(event.data, JobRan)
        job, counts = event.data, to_json(event.data.counts).decode()
        rows.append((event.tenant, event.thread, job.job, job.due_at, event.time, job.duration_ms, counts, job.errors))
    return [Upsert(job_runs, COLUMNS, rows)]


JOBS = Projection("jobs", 1, (job_runs,), REMOVALS | {"job_ran"}, project)
