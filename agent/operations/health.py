"""Tells which parts of the service work."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal

import psycopg
from nats.errors import Error as NatsError
from psycopg_pool import PoolTimeout

from turnlog.agent.operations.breakers import list_breakers
from turnlog.agent.operations.lag import projection_lag
from turnlog.agent.operations.role_processes import deaths, faults, processes
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import TurnlogError

State = Literal["up", "degraded", "down"]
AWAY = (TurnlogError, NatsError, psycopg.Error, PoolTimeout, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Part:
    """The health of one part. detail: what is wrong, or None."""

    name: str
    state: State
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the service. state: the worst state of a part. behind: number of events that the slowest projection
    has not applied yet; None if it is unknown."""

    state: State
    parts: list[Part]
    behind: int | None = None


async def health(runtime: Runtime) -> Health:
    """Returns the health of Postgres, NATS, the projections, the processes and the models. Raises no error while a part
    is unavailable."""
    parts = [await _part("postgres", _database(runtime)), await _part("nats", runtime.log.head())]
    behind = None
    try:
        lags = await projection_lag(runtime)
        stalled = sorted({partition.projection for partition in lags if partition.stalled})
        behind = max((partition.behind for partition in lags), default=0)
        shares = {partition.projection: partition.rebuilt for partition in lags if partition.rebuilt is not None}
        rebuilt = [f"rebuilding {name} {share:.0%}" for name, share in shares.items()]
        wrong = [f"stopped: {', '.join(stalled)}"] * bool(stalled) + rebuilt
        parts.append(Part("projections", "degraded" if wrong else "up", "; ".join(wrong) or None))
    except AWAY as error:
        parts.append(Part("projections", "down", _reason(error)))
    try:
        running = await processes(runtime)
        broken = [*sorted({loop for loop, _ in faults(running)}), *deaths(running)]
        parts.append(Part("processes", "degraded" if broken else "up", "; ".join(broken) or None))
    except AWAY as error:
        parts.append(Part("processes", "down", _reason(error)))
    opened = [circuit.service for circuit in await list_breakers(runtime) if circuit.state != "closed"]
    parts.append(Part("models", "degraded" if opened else "up", f"left alone: {', '.join(opened)}" if opened else None))
    order: list[State] = ["up", "degraded", "down"]
    return Health(max((part.state for part in parts), key=order.index), parts, behind)


async def _database(runtime: Runtime) -> None:
    async with runtime.pool.connection(timeout=2.0) as conn:
        await conn.execute("SELECT 1")


async def _part(name: str, working: Awaitable[object]) -> Part:
    try:
        await working
    except AWAY as error:
        return Part(name, "down", _reason(error))
    return Part(name, "up")


def _reason(error: BaseException) -> str:
    """Returns the error's code, because its text may name servers."""
    return error.code if isinstance(error, TurnlogError) else "cannot be reached"
