"""The reactors' hourly budget, in Postgres so that it holds across restarts and workers."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from turnlog.agent.later import Later
from turnlog.agent.models.protocol import Usage
from turnlog.agent.settings import Settings
from turnlog.projectors.engine.writer import Connection

WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for a sliding hour. Zero calls or zero tokens allow only one call in an otherwise idle window."""

    calls_per_hour: int
    tokens_per_hour: int


@dataclass(frozen=True, slots=True)
class Spent:
    at: datetime
    tokens: int
    calls: int = 1


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The work spent, oldest first; entries older than an hour are dropped when one is added."""

    spent: tuple[Spent, ...] = ()

    def within(self, now: datetime) -> tuple[Spent, ...]:
        return tuple(entry for entry in self.spent if entry.at > now - WINDOW)

    def after(self, now: datetime, tokens: int, calls: int = 1) -> "BudgetState":
        """The state with one more piece of work booked at `now`."""
        entries = sorted((*self.within(now), Spent(now, tokens, calls)), key=lambda entry: entry.at)
        return BudgetState(tuple(entries))


@dataclass(frozen=True, slots=True)
class Allowed:
    pass


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """The earliest time at which the same call is allowed, if nothing else is spent until then."""

    at: datetime


def may_spend(budget: Budget, state: BudgetState, now: datetime, estimate: int, calls: int = 1) -> Allowed | WaitUntil:
    """Decides whether a call of about `estimate` tokens may start now.

    Work larger than an hour's budget is allowed when the window is empty; it would never fit otherwise.
    """
    left = list(state.within(now))
    at = now
    while left and not _fits(budget, left, estimate, calls):
        at = left.pop(0).at + WINDOW
    return Allowed() if at <= now else WaitUntil(at)


def _fits(budget: Budget, entries: list[Spent], estimate: int, calls: int) -> bool:
    used_calls = sum(entry.calls for entry in entries)
    used_tokens = sum(entry.tokens for entry in entries)
    return used_calls + calls <= budget.calls_per_hour and used_tokens + estimate <= budget.tokens_per_hour


MAX_WAIT_S = 600.0


class Ledger:
    """One reactor's budget: `admit` before each model call, booked after it. budget None: no limit."""

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
    """is_local: the model runs on this machine at no cost."""
    return Ledger(
        reactor, None if is_local else Budget(settings.budget_calls_per_hour, settings.budget_tokens_per_hour)
    )
