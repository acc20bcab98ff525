"""Registers the permanent loops of a process. Each loop reports its rounds and is restarted when it ends.

A heartbeat shows that work is done, not only that a task exists, because a loop that waits forever reports no rounds.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from turnlog.events.tasks import cancel, pause

logger = logging.getLogger("turnlog.heartbeats")
ROUND_S = 60.0  # the maximum duration of a round in seconds, unless the loop has its own limit
WINDOW_S = 60.0


@dataclass(slots=True)
class Heartbeat:
    """One loop. round_s: the longest allowed time between two rounds. problem: why its work is currently stuck, or
    None."""

    role: str
    loop: str
    changed: asyncio.Event
    round_s: float = ROUND_S
    at: float = field(default_factory=time.monotonic)
    problem: str | None = None
    _slowest: tuple[float, float] = (0.0, 0.0)  # in the previous window of WINDOW_S, and in the current one
    _window_at: float = field(default_factory=time.monotonic)

    def beat(self, problem: str | None = None) -> None:
        """Records a round. problem: why the round did no work, or None."""
        now = time.monotonic()
        before, within = self._slowest
        if now - self._window_at > WINDOW_S:
            before, within, self._window_at = within, 0.0, now
        self._slowest, self.at = (before, max(within, now - self.at)), now
        self._show(problem)

    def fail(self, problem: str) -> None:
        """Records a problem without a round."""
        self._show(problem)

    def _show(self, problem: str | None) -> None:
        if problem != self.problem:
            self.problem = problem
            self.changed.set()

    @property
    def slowest_s(self) -> float:
        """Returns the longest time between two rounds in at least the last WINDOW_S seconds."""
        return max(self._slowest)

    @property
    def seconds(self) -> float:
        """Returns the seconds since the last round."""
        return time.monotonic() - self.at

    @property
    def fault(self) -> str | None:
        """Returns why the loop is considered dead; None while it works."""
        if self.problem is None and self.seconds > self.round_s:
            return f"no round for {self.seconds:.0f} s"
        return self.problem


Loop = Callable[[Heartbeat], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Heartbeats:
    """All loops of this process. changed: set when a problem appears, changes or disappears. again_s: seconds before a
    loop that ended is restarted."""

    loops: list[Heartbeat] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    again_s: float = 1.0

    @contextlib.asynccontextmanager
    async def running(
        self,
        role: str,
        name: str,
        loop: Loop,
        stop: asyncio.Event,
        round_s: float = ROUND_S,
        grace_s: float | None = 0.0,
    ) -> AsyncIterator[Heartbeat]:
        """Keeps the loop running while the block runs. If the loop ends before `stop`, it is restarted and has a
        problem until its next round.

        At the end of the block `stop` is set, and the loop is cancelled after `grace_s` seconds; None waits until it
        ends.
        """
        beat = Heartbeat(role, name, self.changed, round_s)
        self.loops.append(beat)
        keeper = asyncio.create_task(_keep(beat, loop, stop, self.again_s), name=f"keeper of {name}")
        try:
            yield beat
        finally:
            stop.set()
            try:
                await asyncio.wait({keeper}, timeout=grace_s)
            finally:
                await cancel(keeper)
                self.loops.remove(beat)


async def _keep(beat: Heartbeat, loop: Loop, stop: asyncio.Event, again_s: float) -> None:
    while not stop.is_set():
        task = asyncio.create_task(loop(beat), name=beat.loop)
        try:
            await asyncio.wait({task})
        finally:
            await cancel(task)
        if stop.is_set():
            return
        beat.fail(f"ended and is restarted: {_cause(task)}")
        logger.error("the loop %s of the role %s %s", beat.loop, beat.role, beat.problem)
        await pause(stop, again_s)


def _cause(task: "asyncio.Task[None]") -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "it returned" if error is None else f"{type(error).__name__}: {error}"
