"""Admits one request: a slot among those at once, a place in each window, and quota left (G6; E 5.3).

While Postgres does not answer, every request is admitted: its answer needs rows of Postgres anyway, so it costs nothing
before Postgres is back, and a question that is refused now is lost to its user.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg_pool import PoolTimeout
from uuid_utils.compat import uuid7

from turnlog.agent import metrics
from turnlog.agent.access.identity import Role
from turnlog.agent.runtime import Pool, Runtime
from turnlog.agent.throttle.guards import ADMIT, HELD_S, LOCK, RELEASE, RENEW, guards_of, parameters, refusal
from turnlog.events.errors import cause
from turnlog.events.subjects import check_place
from turnlog.events.tasks import cancel

PATIENCE_S, AWAY_S = 10.0, 5.0
RENEW_S = HELD_S / 3
FAILURES = (psycopg.OperationalError, PoolTimeout, TimeoutError)
logger = logging.getLogger("turnlog.throttle")
Clock = Callable[[], datetime | None]


@dataclass(slots=True)
class _Store:
    """Whether Postgres answered last; after a failure it is not asked for AWAY_S, and the log has one line."""

    away_until: float | None = None

    def failed(self, error: BaseException) -> None:
        if self.away_until is None:
            logger.warning("the throttle cannot reach Postgres, requests are admitted uncounted: %s", cause(error))
        self.away_until = time.monotonic() + AWAY_S

    def answered(self) -> None:
        if self.away_until is not None:
            logger.warning("the throttle counts again")
        self.away_until = None


def _store(_: Runtime) -> _Store:
    return _Store()


def _pool(runtime: Runtime) -> Pool:
    return runtime.admissions or runtime.pool


def _postgres_clock() -> None:
    return None


@contextlib.asynccontextmanager
async def admitted(
    runtime: Runtime,
    tenant: str,
    user: str,
    role: Role,
    thread: str | None = None,
    agent: str | None = None,
    clock: Clock = _postgres_clock,
) -> AsyncIterator[None]:
    """Holds one of the user's slots while the block runs. clock: None is Postgres's own time.

    A slot is a lease of HELD_S that is renewed meanwhile: one of a process that was killed is free after that time.
    Raises TooManyAtOnce, RateLimited, QuotaExceeded, InvalidToken.
    """
    check_place(tenant, thread, user)
    runtime = runtime.system or runtime  # a tenant's connections only read
    given = {**parameters(tenant, user, role, thread, agent), "id": uuid7()}
    if not await _admit(runtime, given, clock):
        yield
        return
    keeper = asyncio.create_task(_keep(runtime, given["id"], clock))
    try:
        yield
    finally:
        await cancel(keeper)
        await asyncio.shield(_change(runtime, RELEASE, {"id": given["id"]}))


async def _admit(runtime: Runtime, given: dict[str, Any], clock: Clock) -> bool:
    """False: uncounted, since Postgres is away. All statements go in one round trip."""
    store = runtime.kept(_store)
    if store.away_until is not None and time.monotonic() < store.away_until:
        return False
    try:
        async with asyncio.timeout(PATIENCE_S), _pool(runtime).connection() as conn:
            async with conn.pipeline(), conn.transaction():
                await conn.execute(LOCK.encode(), given)
                cursor = await conn.execute(ADMIT.encode(), {**given, "now": clock()})
            rows = await cursor.fetchall()
    except FAILURES as error:
        store.failed(error)
        return False
    store.answered()
    if refused := refusal(guards_of(rows), rows[0][-1]):
        metrics.REFUSALS.labels(refused.name).inc()
        raise refused
    return True


async def _keep(runtime: Runtime, slot: UUID, clock: Clock) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        await _change(runtime, RENEW, {"id": slot, "now": clock()})


async def _change(runtime: Runtime, sql: str, given: dict[str, Any]) -> None:
    """Without Postgres the lease ends by itself."""
    try:
        async with asyncio.timeout(PATIENCE_S), _pool(runtime).connection() as conn:
            await conn.execute(sql.encode(), given)
    except FAILURES as error:
        runtime.kept(_store).failed(error)
