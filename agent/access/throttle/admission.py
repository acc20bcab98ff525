"""Admits a request if a slot is free, each window has room, and quota is left.

Postgres counts for all processes, and a request that it cannot count in time is refused. Only while Postgres accepts no
connections, each process counts for itself with the same limits: a refused question would be lost to its user, and its
answer waits for Postgres anyway.
"""

import asyncio
import contextlib
import logging
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping
from psycopg_pool import PoolTimeout
from uuid_utils.compat import uuid7

from turnlog.agent import metrics
from turnlog.agent.access.identity import Role
from turnlog.agent.access.throttle.guards import (
    ADMIT,
    DEFAULTS,
    HAND_ON,
    HELD_S,
    LOCK,
    RELEASE,
    RENEW,
    Guard,
    guards_of,
    parameters,
    refusal,
)
from turnlog.agent.runtime import Pool, Runtime
from turnlog.events.contracts import LimitName, Plan
from turnlog.events.errors import TurnlogError, cause
from turnlog.events.subjects import check_place
from turnlog.events.tasks import cancel

RETRY_S = 2.0
FAILURES = (psycopg.OperationalError, PoolTimeout, TimeoutError)
logger = logging.getLogger("turnlog.throttle")
Clock = Callable[[], datetime | None]


MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
SWEEP_EVERY = 1_000
Key = tuple[str, ...]


class LocalCount:
    """Counts concurrent requests and those of the last minute and hour in this process while Postgres is unavailable.

    It records every admitted request of the process, including those that Postgres counted, so that windows do not
    restart when Postgres fails. It does not know tokens and cost. limits: the limits last read from Postgres, by tenant
    and plan.
    """

    def __init__(self) -> None:
        self.limits: dict[tuple[str, Plan], Mapping[LimitName, float]] = {}
        self._running: Counter[Key] = Counter()
        self._admitted: dict[Key, deque[datetime]] = {}
        self._notes = 0

    def begin(self, request: Mapping[str, Any], now: datetime) -> None:
        """Records an admitted request. request: its parameters, as guards.parameters returns them."""
        self._running[_user(request)] += 1
        for key in {key for _, key, _ in _windows(request)}:
            self._admitted.setdefault(key, deque()).append(now)
        self._notes += 1
        if self._notes % SWEEP_EVERY == 0:
            self._admitted = {key: times for key, times in self._admitted.items() if times[-1] > now - HOUR}

    def end(self, request: Mapping[str, Any]) -> None:
        self._running[_user(request)] -= 1
        if not self._running[_user(request)]:
            del self._running[_user(request)]

    def guards(self, request: Mapping[str, Any], now: datetime) -> list[Guard]:
        """Returns guards with the limits and with the requests that this process has admitted."""
        plan: Plan = request["plan"]
        limits = {**DEFAULTS[plan], **self.limits.get((request["tenant"], plan), {})}
        running = self._running[_user(request)]
        return [
            Guard("concurrent", limits["concurrent"], running, max(limits["concurrent"] - running, 0), None),
            *(self._window(name, key, span, limits[name], now) for name, key, span in _windows(request)),
        ]

    def _window(self, name: LimitName, key: Key, span: timedelta, limit: float, now: datetime) -> Guard:
        times = self._admitted.get(key, deque())
        while times and times[0] <= now - HOUR:
            times.popleft()
        hits = list(times)[bisect_right(times, now - span) :]
        at = hits[int(max(len(hits) - limit, 0))] + span if hits and limit > 0 else None
        return Guard(name, limit, len(hits), max(limit - len(hits), 0), at)


def _user(request: Mapping[str, Any]) -> Key:
    return ("user", request["tenant"], request["user"])


def _windows(request: Mapping[str, Any]) -> Iterator[tuple[LimitName, Key, timedelta]]:
    yield "user_per_minute", _user(request), MINUTE
    yield "user_per_hour", _user(request), HOUR
    if request["thread"] is not None:
        yield "conversation_per_minute", ("thread", request["tenant"], request["thread"]), MINUTE
    if request["agent"] is not None:
        yield "agent_per_minute", ("agent", request["tenant"], request["user"], request["agent"]), MINUTE


class NotCounted(TurnlogError):
    """The request could not be counted in time, because Postgres or this process is too busy (503)."""

    code = "not-counted-in-time"
    retry_after_s = RETRY_S


@dataclass(slots=True)
class Throttle:
    """The throttle's state and time limits in one process. away: Postgres accepted no connections at the last check,
    whose result is valid until found_until, by time.monotonic().

    patience_s: how long a request may wait to be counted. away_s: the time until an unavailable Postgres is checked
    again. ping_s: the timeout of such a check. renew_s: the time between two renewals of a slot.
    """

    local: LocalCount = field(default_factory=LocalCount)
    away: bool = False
    found_until: float = 0.0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    patience_s: float = 10.0
    away_s: float = 1.0
    ping_s: float = 1.5
    renew_s: float = HELD_S / 3

    async def is_away(self, database_url: str, error: BaseException | None = None) -> bool:
        """Returns whether Postgres is unavailable. Asks it after a failure, and while it is unavailable, at most once
        per away_s.

        A slow server, an exhausted pool or a busy process does not count as unavailable.
        """
        if error is None and not self.away:
            return False
        async with self.asking:
            if time.monotonic() >= self.found_until:
                away = not await _takes_connections(database_url, self.ping_s)
                if away and not self.away:
                    logger.warning(
                        "Postgres is away, the throttle counts in this process alone: %s", error and cause(error)
                    )
                if self.away and not away:
                    logger.warning("Postgres is back, the throttle counts there again")
                self.away, self.found_until = away, time.monotonic() + self.away_s
                metrics.THROTTLE_LOCAL.set(away)
            return self.away


def throttle_of(_: Runtime) -> Throttle:
    return Throttle()


async def _takes_connections(database_url: str, timeout_s: float) -> bool:
    """Returns whether Postgres accepts connections, which it does not while it starts or stops (libpq, PQping). A
    server that is silent for timeout_s counts as slow, not as unavailable."""
    address = make_conninfo(database_url, connect_timeout=2).encode()
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.to_thread(PGconn.ping, address) == Ping.OK
    except TimeoutError:
        return True


def _pool(runtime: Runtime) -> Pool:
    return runtime.admissions or runtime.pool


@contextlib.asynccontextmanager
async def admitted(
    runtime: Runtime,
    tenant: str,
    user: str,
    role: Role,
    thread: str | None = None,
    agent: str | None = None,
    clock: Clock = lambda: None,
    embeds: bool = False,
) -> AsyncIterator[None]:
    """Holds one of the user's slots while the block runs. clock: returns the time to use; None means Postgres's own
    time. embeds: the quota of tokens for embeddings applies, not that for answers.

    A slot is a lease of HELD_S, which is renewed while the block runs; the slot of a killed process is free after that
    time. Raises TooManyAtOnce, RateLimited, QuotaExceeded, NotCounted, InvalidToken.
    """
    check_place(tenant, thread, user)
    runtime = runtime.system or runtime  # a tenant's connections only read
    without: LimitName = "tokens_per_day" if embeds else "embedding_tokens_per_day"
    request = {**parameters(tenant, user, role, thread, agent, without), "id": uuid7()}
    is_counted = await _admit(runtime, request, clock)
    local = runtime.cached(throttle_of).local
    local.begin(request, clock() or datetime.now(UTC))
    keeper = asyncio.create_task(_keep(runtime, request["id"], clock)) if is_counted else None
    try:
        yield
    finally:
        local.end(request)
        if keeper is not None:
            await cancel(keeper)
            await asyncio.shield(_change(runtime, RELEASE, {"id": request["id"]}))


async def note_handed_on(runtime: Runtime, tenant: str, user: str, agent: str, id_: UUID) -> None:
    """Counts a question in the window of the agent to which it was handed over. Its run continues; the next request may
    be refused. id_: the same id counts once."""
    runtime = runtime.system or runtime
    await _change(runtime, HAND_ON, {"id": id_, "tenant": tenant, "user": user, "agent": agent})


async def _admit(runtime: Runtime, request: dict[str, Any], clock: Clock) -> bool:
    """Returns whether Postgres counted the request; False if this process counted it because Postgres is unavailable.

    Raises Refused, NotCounted.
    """
    throttle = runtime.cached(throttle_of)
    if not await throttle.is_away(runtime.database_url):
        try:
            guards, now = await _counted(runtime, request, clock)
        except FAILURES as error:
            if not await throttle.is_away(runtime.database_url, error):
                metrics.UNCOUNTED_REFUSALS.inc()
                raise NotCounted("your request could not be counted in time; try again in a moment") from error
        else:
            throttle.local.limits[request["tenant"], request["plan"]] = {guard.name: guard.limit for guard in guards}
            _check(guards, now)
            return True
    now = clock() or datetime.now(UTC)
    _check(throttle.local.guards(request, now), now)
    metrics.LOCAL_ADMISSIONS.inc()
    return False


async def _counted(runtime: Runtime, request: dict[str, Any], clock: Clock) -> tuple[list[Guard], datetime]:
    """Returns the used amounts, and the time at which they were counted. All statements go in one round trip."""
    patience_s = runtime.cached(throttle_of).patience_s
    async with asyncio.timeout(patience_s), _pool(runtime).connection() as conn:
        async with conn.pipeline(), conn.transaction():
            await conn.execute(LOCK.encode(), request)
            cursor = await conn.execute(ADMIT.encode(), {**request, "now": clock()})
        rows = await cursor.fetchall()
    return guards_of(rows), rows[0][-1]


def _check(guards: Sequence[Guard], now: datetime) -> None:
    """Raises Refused if a guard refuses the request."""
    if refused := refusal(guards, now):
        metrics.REFUSALS.labels(refused.name).inc()
        raise refused


async def _keep(runtime: Runtime, slot: UUID, clock: Clock) -> None:
    while True:
        await asyncio.sleep(runtime.cached(throttle_of).renew_s)
        await _change(runtime, RENEW, {"id": slot, "now": clock()})


async def _change(runtime: Runtime, sql: str, values: dict[str, Any]) -> None:
    """Executes a statement on `admissions`; does nothing if Postgres is unavailable. Leases expire by themselves."""
    patience_s = runtime.cached(throttle_of).patience_s
    with contextlib.suppress(*FAILURES):
        async with asyncio.timeout(patience_s), _pool(runtime).connection() as conn:
            await conn.execute(sql.encode(), values)
