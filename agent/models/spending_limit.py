"""Limits the hourly spending of the reactors. The spending is stored in Postgres, so the limit holds across restarts
and workers."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from turnlog.agent.models.protocol import Usage
from turnlog.agent.retry_later import RetryLater
from turnlog.agent.settings import Settings
from turnlog.projectors.engine.writer import Connection

WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class SpendingLimit:
    """The limits for a sliding hour. Zero calls or zero tokens still allow one call in an otherwise idle window."""

    calls_per_hour: int
    tokens_per_hour: int


class Spent(NamedTuple):
    at: datetime
    tokens: int
    calls: int = 1


def allowed_at(limit: SpendingLimit, spent: Iterable[Spent], now: datetime, estimate: int) -> datetime:
    """Returns the earliest time, `now` or later, at which a call of about `estimate` tokens may start if no other call
    is made.

    spent: oldest first. Work that is larger than an hour's budget is allowed if the window is empty, because otherwise
    it would never fit.
    """
    left = [entry for entry in spent if entry.at > now - WINDOW]
    at = now
    while left and not _fits(limit, left, estimate):
        at = left.pop(0).at + WINDOW
    return at


def _fits(limit: SpendingLimit, spent: list[Spent], estimate: int) -> bool:
    calls, tokens = sum(entry.calls for entry in spent), sum(entry.tokens for entry in spent)
    return calls < limit.calls_per_hour and tokens + estimate <= limit.tokens_per_hour


MAX_WAIT_S = 600.0


class Ledger:
    """Applies the limit to one reactor: call `admit` before each model call and `book` after it. limit: None means
    unlimited."""

    def __init__(self, reactor: str, limit: SpendingLimit | None) -> None:
        self._reactor, self._limit = reactor, limit

    async def admit(self, conn: Connection, estimate: int) -> None:
        """Raises RetryLater if a call of about `estimate` tokens does not fit into the sliding hour."""
        if self._limit is None:
            return
        now = datetime.now(UTC)
        rows = await conn.execute(
            "SELECT spent_at, tokens, calls FROM reactor_spending WHERE reactor = %s AND spent_at > %s "
            "ORDER BY spent_at",
            (self._reactor, now - WINDOW),
        )
        at = allowed_at(self._limit, [Spent(*row) for row in await rows.fetchall()], now, estimate)
        if at > now:
            seconds = max(1.0, (at - now).total_seconds())
            raise RetryLater(
                min(seconds, MAX_WAIT_S), f"the hourly budget of {self._reactor} is spent until {at:%H:%M:%S}"
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
    """Returns the ledger of a reactor. is_local: the model runs on this machine at no cost."""
    return Ledger(
        reactor, None if is_local else SpendingLimit(settings.budget_calls_per_hour, settings.budget_tokens_per_hour)
    )
