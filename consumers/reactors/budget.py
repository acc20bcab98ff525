"""The reactors' hourly budget, kept in Postgres so that it holds over restarts and over several workers."""

from datetime import UTC, datetime

from turnlog.agent.models.budget import WINDOW, Budget, BudgetState, Spent, WaitUntil, may_spend
from turnlog.agent.models.protocol import Usage
from turnlog.agent.settings import Settings
from turnlog.consumers.inbox import Later
from turnlog.projectors.writer import Connection

MAX_WAIT_S = 600.0


class Ledger:
    """One reactor's budget: asked before each call of a model, told after it. budget None: nothing is limited."""

    def __init__(self, reactor: str, budget: Budget | None) -> None:
        self._reactor, self._budget = reactor, budget

    async def admit(self, conn: Connection, estimate: int) -> None:
        """Raises Later until a call of about `estimate` tokens fits into the sliding hour."""
        if self._budget is None:
            return
        now = datetime.now(UTC)
        rows = await conn.execute(
            "SELECT spent_at, tokens, calls FROM reactor_spending WHERE reactor = %s AND spent_at > %s "
            "ORDER BY spent_at",
            (self._reactor, now - WINDOW),
        )
        state = BudgetState(tuple(Spent(at, tokens, calls) for at, tokens, calls in await rows.fetchall()))
        verdict = may_spend(self._budget, state, now, estimate)
        if isinstance(verdict, WaitUntil):
            seconds = max(1.0, (verdict.at - now).total_seconds())
            raise Later(
                min(seconds, MAX_WAIT_S), f"the hourly budget of {self._reactor} is spent until {verdict.at:%H:%M:%S}"
            )

    async def book(self, conn: Connection, usage: Usage) -> None:
        await conn.execute(
            "INSERT INTO reactor_spending (reactor, spent_at, calls, tokens) VALUES (%s, clock_timestamp(), %s, %s) "
            "ON CONFLICT (reactor, spent_at) DO UPDATE SET calls = reactor_spending.calls + excluded.calls, "
            "tokens = reactor_spending.tokens + excluded.tokens",
            (self._reactor, usage.calls, usage.tokens_in + usage.tokens_out),
        )
        await conn.execute("DELETE FROM reactor_spending WHERE spent_at < now() - interval '2 hours'")


def ledger(reactor: str, settings: Settings, is_local: bool) -> Ledger:
    """is_local: the model runs here and costs nothing."""
    return Ledger(
        reactor, None if is_local else Budget(settings.budget_calls_per_hour, settings.budget_tokens_per_hour)
    )
