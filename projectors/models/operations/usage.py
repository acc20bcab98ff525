"""usage: tokens, cost, latency and errors by user, tenant, agent, model and day."""

from collections.abc import Sequence

import sqlalchemy as sa

from turnlog.events.contracts import Recorded, UsageMetered
from turnlog.projectors.engine.changes import Change, Row, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import metadata

UNSAID = "tokens of older events, which do not say whether their price was known"
usage = sa.Table(
    "usage",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("day", sa.Date, primary_key=True, comment="UTC"),
    sa.Column("user_id", sa.Text, primary_key=True, comment="'' if unknown"),
    sa.Column("agent", sa.Text, primary_key=True, comment="'' if there is none"),
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
    sa.Column(
        "unpriced_tokens", sa.BigInteger, nullable=False, server_default="0", comment="tokens without a known price"
    ),
    sa.Column("unsaid_tokens", sa.BigInteger, nullable=False, server_default="0", comment=UNSAID),
)
sa.Index("usage_user", usage.c.tenant, usage.c.user_id, usage.c.day)
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
    latency, tokens = round(data.latency_ms), data.tokens_in + data.tokens_out
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
        tokens if data.price_known is False else 0,
        tokens if data.price_known is None else 0,
    )


def _add(known: Row, row: Row) -> Row:
    values = zip(COLUMNS[_KEYS:], known[_KEYS:], row[_KEYS:], strict=True)
    return (*known[:_KEYS], *(max(a, b) if name.endswith("_max") else a + b for name, a, b in values))


USAGE = Projection("usage", 1, (usage,), frozenset({"usage_metered"}), project, per_thread=False)
