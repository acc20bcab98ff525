"""The count that goes on in this process while Postgres is away: requests at once, windows of a minute and an hour.

Every admitted request of the process is noted, those that Postgres counted too, so that a window does not begin anew
when Postgres goes. Tokens and cost cannot be known here.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from turnlog.agent.access.throttle.guards import DEFAULTS, Guard
from turnlog.events.contracts import LimitName, Plan

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
SWEEP_EVERY = 1_000
Key = tuple[str, ...]


class LocalCount:
    """limits: as Postgres said last, by tenant and plan."""

    def __init__(self) -> None:
        self.limits: dict[tuple[str, Plan], Mapping[LimitName, float]] = {}
        self._running: Counter[Key] = Counter()
        self._admitted: dict[Key, deque[datetime]] = {}
        self._notes = 0

    def begin(self, given: Mapping[str, Any], now: datetime) -> None:
        """Notes an admitted request. given: as of guards.parameters."""
        self._running[_user(given)] += 1
        for key in {key for _, key, _ in _windows(given)}:
            self._admitted.setdefault(key, deque()).append(now)
        self._notes += 1
        if self._notes % SWEEP_EVERY == 0:
            self._admitted = {key: times for key, times in self._admitted.items() if times[-1] > now - HOUR}

    def end(self, given: Mapping[str, Any]) -> None:
        self._running[_user(given)] -= 1
        if not self._running[_user(given)]:
            del self._running[_user(given)]

    def guards(self, given: Mapping[str, Any], now: datetime) -> list[Guard]:
        """What the process has admitted, beside the limits."""
        plan: Plan = given["plan"]
        limits = {**DEFAULTS[plan], **self.limits.get((given["tenant"], plan), {})}
        running = self._running[_user(given)]
        return [
            Guard("concurrent", limits["concurrent"], running, max(limits["concurrent"] - running, 0), None),
            *(self._window(name, key, span, limits[name], now) for name, key, span in _windows(given)),
        ]

    def _window(self, name: LimitName, key: Key, span: timedelta, limit: float, now: datetime) -> Guard:
        times = self._admitted.get(key, deque())
        while times and times[0] <= now - HOUR:
            times.popleft()
        hits = list(times)[bisect_right(times, now - span) :]
        at = hits[int(max(len(hits) - limit, 0))] + span if hits and limit > 0 else None
        return Guard(name, limit, len(hits), max(limit - len(hits), 0), at)


def _user(given: Mapping[str, Any]) -> Key:
    return ("user", given["tenant"], given["user"])


def _windows(given: Mapping[str, Any]) -> Iterator[tuple[LimitName, Key, timedelta]]:
    yield "user_per_minute", _user(given), MINUTE
    yield "user_per_hour", _user(given), HOUR
    if given["thread"] is not None:
        yield "conversation_per_minute", ("thread", given["tenant"], given["thread"]), MINUTE
    if given["agent"] is not None:
        yield "agent_per_minute", ("agent", given["tenant"], given["user"], given["agent"]), MINUTE
