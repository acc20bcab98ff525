"""A circuit breaker of E 5: after 5 failures in a row no call for 30 s, then 2 trial calls must succeed.

Own code because no maintained asyncio library has a trial count above one and an injectable clock: purgatory closes
after a single success, pybreaker's async side needs tornado, aiobreaker and aiocircuitbreaker had no release since
2021-22.
"""

import time
from collections.abc import Callable
from typing import Literal

from turnlog.agent.models.errors import BreakerOpen

State = Literal["closed", "open", "half-open"]


class Breaker:
    """One per server. Every `admit` is followed by exactly one of `succeeded`, `failed` or `released`."""

    def __init__(
        self,
        name: str,
        failures: int = 5,
        open_s: float = 30.0,
        trials: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._limit, self._open_s, self._trials, self._clock = name, failures, open_s, trials, clock
        self._failures = 0
        self._opened_at: float | None = None
        self._running = 0
        self._passed = 0

    @property
    def state(self) -> State:
        if self._opened_at is None:
            return "closed"
        return "open" if self._clock() < self._opened_at + self._open_s else "half-open"

    def admit(self) -> None:
        """Raises BreakerOpen while open, and while the trial calls of half-open are under way."""
        state = self.state
        if state == "open" or (state == "half-open" and self._running >= self._trials):
            wait = max(0.0, (self._opened_at or 0.0) + self._open_s - self._clock())
            raise BreakerOpen(
                f"{self._name} failed {self._limit} times in a row and is left alone for {self._open_s:.0f} s; "
                "turnlog tries again by itself. Check that the server is up.",
                retry_after_s=wait or 1.0,
            )
        self._running += 1

    def succeeded(self) -> None:
        self.released()
        self._failures = 0
        if self.state == "half-open":
            self._passed += 1
            if self._passed >= self._trials:
                self._opened_at = None

    def failed(self) -> None:
        self.released()
        self._failures += 1
        # In half-open one failure opens it again.
        if self.state == "half-open" or (self.state == "closed" and self._failures >= self._limit):
            self._opened_at, self._passed = self._clock(), 0

    def reset(self) -> None:
        """As if the server had never failed. Calls under way are counted on."""
        self._opened_at, self._failures, self._passed = None, 0, 0

    def released(self) -> None:
        """For a call whose end does not show the server's health (cancelled, rate limited)."""
        self._running = max(0, self._running - 1)
