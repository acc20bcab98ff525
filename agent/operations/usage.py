"""Sums up the usage of language models: calls, tokens, cost and latency by user, agent, model, day or month."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, get_args

from psycopg.rows import class_row

from turnlog.agent.models.pricing import Prices, load_prices
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import check_place
from turnlog.projectors.engine.writer import Connection

By = Literal["user", "agent", "model", "day", "month"]
_KEYS_BY = {
    "user": "user_id",
    "agent": "agent",
    "model": "model",
    "day": "to_char(day, 'YYYY-MM-DD')",
    "month": "to_char(day, 'YYYY-MM')",
}
_IN_TIME = ("day", "month")


class InvalidGrouping(TurnlogError):
    """Usage cannot be grouped by this value."""

    code = "invalid-grouping"


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage under one key: a user, agent or model ("" where unknown), a day 2026-03-31 or a month 2026-03, both in
    UTC. latency_ms_mean: of a call. unpriced_tokens: of calls without a known price, which are not in cost_usd."""

    key: str
    calls: int
    tokens_in: int
    tokens_out: int
    cost_usd: float
    errors: int
    latency_ms_mean: int
    latency_ms_max: int
    unpriced_tokens: int = 0


async def usage(runtime: Runtime, tenant: str, user: str | None = None, by: By = "day") -> list[Usage]:
    """Returns the usage of a tenant, or of one of its users. Days and months are sorted newest first, other keys by
    cost and calls.

    Raises InvalidGrouping, InvalidToken.
    """
    check_place(tenant, user=user)
    if by not in get_args(By):
        raise InvalidGrouping(f"usage cannot be added up by {by!r}; there are {', '.join(get_args(By))}")
    async with runtime.reading("usage") as conn:
        return await usage_by(conn, tenant, user, by, load_prices(runtime.settings.prices))


async def usage_by(
    conn: Connection, tenant: str, user: str | None, by: str, prices: Prices | None = None
) -> list[Usage]:
    """Returns a tenant's usage by user, agent, model, day or month, sorted as in `usage`. user: None means all users.

    prices: the bundled ones by default. They are used only for events that do not say whether their model had a price.
    """
    order = "key DESC" if by in _IN_TIME else "cost_usd DESC, calls DESC, key"
    cursor = conn.cursor(row_factory=class_row(Usage))
    await cursor.execute(
        f"SELECT {_KEYS_BY[by]} AS key, sum(calls)::bigint AS calls, sum(tokens_in)::bigint AS tokens_in, "
        "sum(tokens_out)::bigint AS tokens_out, sum(cost_micro_usd)::float / 1e6 AS cost_usd, "
        "sum(errors)::bigint AS errors, (sum(latency_ms_sum) / greatest(sum(calls), 1))::bigint AS latency_ms_mean, "
        "max(latency_ms_max) AS latency_ms_max FROM usage WHERE tenant = %(tenant)s "
        f"AND (%(user)s::text IS NULL OR user_id = %(user)s) GROUP BY 1 ORDER BY {order}".encode(),
        {"tenant": tenant, "user": user},
    )
    rows = await cursor.fetchall()
    of_models = await conn.execute(
        f"SELECT {_KEYS_BY[by]} AS key, model, sum(unpriced_tokens)::bigint, "
        "(sum(unsaid_tokens) FILTER (WHERE cost_micro_usd = 0))::bigint FROM usage "
        "WHERE tenant = %(tenant)s AND (%(user)s::text IS NULL OR user_id = %(user)s) "
        "AND unpriced_tokens + unsaid_tokens > 0 GROUP BY 1, 2".encode(),
        {"tenant": tenant, "user": user},
    )
    prices, unpriced = prices or load_prices(), Counter[str]()
    for key, model, tokens, unsaid in await of_models.fetchall():
        unpriced[key] += tokens + (0 if prices.price_of(model) else unsaid or 0)
    return [replace(row, unpriced_tokens=unpriced[row.key]) for row in rows]
