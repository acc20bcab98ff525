"""limits: the limits of a tenant's users, if they were changed from the defaults."""

from collections.abc import Sequence

import sqlalchemy as sa

from turnlog.events.contracts import REMOVALS, LimitsChanged, Recorded
from turnlog.events.subjects import LIMITS
from turnlog.projectors.engine.changes import Change, Row, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table

LIMITS_THREAD = LIMITS + "tenant"

limits = thread_table(
    "limits",
    sa.Column("plan", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("most", sa.Float, nullable=False),
)
COLUMNS = tuple(column.name for column in limits.columns)


def project(batch: Sequence[Recorded]) -> list[Change]:
    newest: dict[Row, Row] = {}
    for recorded in batch:
        event, data = recorded.event, recorded.event.data
        assert isinstance(data, LimitsChanged)
        for name, most in data.limits.items():
            key = (event.tenant, event.thread, data.plan, name)
            newest[key] = (*key, most)
    return [Upsert(limits, COLUMNS, list(newest.values()), (("most", "excluded.most"),))]


LIMITS_MODEL = Projection("limits", 1, (limits,), REMOVALS | {"limits_changed"}, project)
