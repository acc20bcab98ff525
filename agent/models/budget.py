"""A reactor's budget: at most so many calls and tokens in any hour. Pure: time comes in as a value."""

from dataclasses import dataclass
from datetime import datetime, timedelta

WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for a sliding hour. Zero calls or zero tokens: nothing is ever allowed but an idle window's one call."""

    calls_per_hour: int
    tokens_per_hour: int


@dataclass(frozen=True, slots=True)
class Spent:
    at: datetime
    tokens: int
    calls: int = 1


@dataclass(frozen=True, slots=True)
class BudgetState:
    """What was spent, oldest first; entries older than an hour are dropped as new ones come."""

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
    """The earliest time at which the same question gets Allowed, if nothing else is spent until then."""

    at: datetime


def may_spend(budget: Budget, state: BudgetState, now: datetime, estimate: int, calls: int = 1) -> Allowed | WaitUntil:
    """May a call of about `estimate` tokens start now?

    Work larger than a whole hour's budget is allowed when the window is empty: else it would wait forever.
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
