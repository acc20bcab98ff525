"""Usage of language models: calls, tokens, cost and latency by user, agent, model, day or month (E 11.1, 12)."""

from dataclasses import dataclass
from typing import Literal, get_args

from turnlog.agent.runtime import Runtime
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import check_place
from turnlog.projectors.models.usage import usage_by

By = Literal["user", "agent", "model", "day", "month"]


class InvalidGrouping(TurnlogError):
    """Usage cannot be added up by this."""

    code = "invalid-grouping"


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used under one key: a user, agent or model ("" where unknown), a day 2026-03-31 or a month 2026-03,
    both in UTC. latency_ms_mean: of a call."""

    key: str
    calls: int
    tokens_in: int
    tokens_out: int
    cost_usd: float
    errors: int
    latency_ms_mean: int
    latency_ms_max: int


async def usage(runtime: Runtime, tenant: str, user: str | None = None, by: By = "day") -> list[Usage]:
    """Of a tenant, or of one of its users. Days and months newest first, other keys by cost and calls.

    Raises InvalidGrouping, InvalidToken.
    """
    check_place(tenant, user=user)
    if by not in get_args(By):
        raise InvalidGrouping(f"usage cannot be added up by {by!r}; there are {', '.join(get_args(By))}")
    await runtime.settle(names=("usage",))
    async with runtime.pool.connection() as conn:
        return [Usage(**row) for row in await usage_by(conn, tenant, user, by)]
