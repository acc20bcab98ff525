"""The reactors' hourly budget, kept in Postgres so that it holds over restarts and over several workers."""

from collections.abc import Sequence
from datetime import UTC, datetime

from turnlog.agent.models.budget import WINDOW, Budget, BudgetState, Spent, WaitUntil, may_spend
from turnlog.agent.models.protocol import Usage
from turnlog.consumers.inbox import Later
from turnlog.projectors.writer import Connection


async def refuse_over_budget(conn: Connection, reactor: str, budget: Budget, estimate: int) -> None:
    """Raises Later until the work fits into the sliding hour."""
    now = datetime.now(UTC)
    rows = await conn.execute(
        "SELECT spent_at, tokens, calls FROM reactor_spending WHERE reactor = %s AND spent_at > %s ORDER BY spent_at",
        (reactor, now - WINDOW),
    )
    state = BudgetState(tuple(Spent(at, tokens, calls) for at, tokens, calls in await rows.fetchall()))
    verdict = may_spend(budget, state, now, estimate)
    if isinstance(verdict, WaitUntil):
        seconds = max(1.0, (verdict.at - now).total_seconds())
        raise Later(min(seconds, 600.0), f"the hourly budget of {reactor} is spent until {verdict.at:%H:%M:%S}")


async def book(conn: Connection, reactor: str, usages: Sequence[Usage]) -> None:
    if not usages:
        return
    calls, tokens = sum(u.calls for u in usages), sum(u.tokens_in + u.tokens_out for u in usages)
    await conn.execute(
        "INSERT INTO reactor_spending (reactor, spent_at, calls, tokens) VALUES (%s, clock_timestamp(), %s, %s) "
        "ON CONFLICT (reactor, spent_at) DO UPDATE SET calls = reactor_spending.calls + excluded.calls, "
        "tokens = reactor_spending.tokens + excluded.tokens",
        (reactor, calls, tokens),
    )
    await conn.execute("DELETE FROM reactor_spending WHERE spent_at < now() - interval '2 hours'")
