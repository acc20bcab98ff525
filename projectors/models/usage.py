"""P10 usage: tokens, cost, latency and errors by user, tenant, agent, model and day (E 12)."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from psycopg.rows import dict_row

from turnlog.events.contracts import Recorded, UsageMetered
from turnlog.projectors.engine.changes import Change, Row, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import metadata
from turnlog.projectors.engine.writer import Connection

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("day", sa.Date, primary_key=True, comment="UTC"),
    sa.Column("user_id", sa.Text, primary_key=True, comment="'' where unknown"),
    sa.Column("agent", sa.Text, primary_key=True, comment="'' where none"),
    sa.Column("purpose", sa.Text, primary_key=True),
    sa.Column("provider", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("tokens_in", sa.BigInteger, nullable=False),
    sa.Column("tokens_out", sa.BigInteger, nullable=False),
    sa.Column("cost_micro_usd", sa.BigInteger, nullable=False, comment="integer, so that sums do not depend on order"),
    sa.Column("errors", sa.BigInteger, nullable=False),
    sa.Column("latency_ms_sum", sa.BigInteger, nullable=False),
    sa.Column("latency_ms_max", sa.BigInteger, nullable=False),
)
COLUMNS = tuple(column.name for column in usage.columns)
_KEYS = 7
_UPDATE = tuple(
    (name, f"greatest(t.{name}, excluded.{name})" if name.endswith("_max") else f"t.{name} + excluded.{name}")
    for name in COLUMNS[_KEYS:]
)


def project(batch: Sequence[Recorded]) -> list[Change]:
    folded: dict[Row, Row] = {}
    for recorded in batch:
        row = _row(recorded)
        key = row[:_KEYS]
        folded[key] = row if key not in folded else _add(folded[key], row)
    return [Upsert(usage, COLUMNS, list(folded.values()), _UPDATE)]


def _row(recorded: Recorded) -> Row:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, UsageMetered)
    latency = round(data.latency_ms)
    return (
        event.tenant,
        recorded.stored_at.date(),
        event.user or "",
        data.agent or "",
        data.purpose,
        data.provider,
        data.model,
        data.calls,
        data.tokens_in,
        data.tokens_out,
        round(data.cost_usd * 1_000_000),
        int(data.error is not None),
        latency,
        latency,
    )


def _add(known: Row, row: Row) -> Row:
    sums = tuple(a + b for a, b in zip(known[_KEYS:-1], row[_KEYS:-1], strict=True))
    return (*known[:_KEYS], *sums, max(known[-1], row[-1]))


USAGE = Projection("usage", 1, (usage,), frozenset({"usage_metered"}), project, per_thread=False)


_KEYS_BY = {
    "user": "user_id",
    "agent": "agent",
    "model": "model",
    "day": "to_char(day, 'YYYY-MM-DD')",
    "month": "to_char(day, 'YYYY-MM')",
}
_IN_TIME = ("day", "month")


async def usage_by(conn: Connection, tenant: str, user: str | None, by: str) -> list[dict[str, Any]]:
    """Sums over a tenant's rows by user, agent, model, day or month. Newest first, or by cost and calls."""
    order = "key DESC" if by in _IN_TIME else "cost_usd DESC, calls DESC, key"
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(
        f"SELECT {_KEYS_BY[by]} AS key, sum(calls)::bigint AS calls, sum(tokens_in)::bigint AS tokens_in, "
        "sum(tokens_out)::bigint AS tokens_out, sum(cost_micro_usd)::float / 1e6 AS cost_usd, "
        "sum(errors)::bigint AS errors, (sum(latency_ms_sum) / greatest(sum(calls), 1))::bigint AS latency_ms_mean, "
        "max(latency_ms_max) AS latency_ms_max FROM usage WHERE tenant = %(tenant)s "
        f"AND (%(user)s::text IS NULL OR user_id = %(user)s) GROUP BY 1 ORDER BY {order}".encode(),
        {"tenant": tenant, "user": user},
    )
    return await cursor.fetchall()
