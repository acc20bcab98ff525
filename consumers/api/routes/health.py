"""Liveness, readiness, and the keys that verify tokens; these routes need no token."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from turnlog.agent.access.access import Access
from turnlog.agent.operations.lag import projection_lag, stuck_reactors
from turnlog.agent.operations.role_processes import deaths, faults, processes
from turnlog.events.errors import OtherLog
from turnlog.projectors.engine.lag import READ_WHILE_REBUILT

router = APIRouter(tags=["health"])


@dataclass(frozen=True, slots=True)
class Alive:
    alive: bool = True


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """A projection that is being rebuilt. served: its rows, without the newest events, are read in the meantime;
    without it, reads wait and `ready` is false. percent: of the log."""

    projection: str
    percent: int
    served: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """The readiness of the server. ready: every projection keeps up with the log, and every reactor works. behind:
    events that the slowest projection still has to apply, null if unknown. stalled: projections that have stopped;
    stuck: reactors, including the agent, that have stopped; broken: loops that have ended or get no work; died:
    processes whose roles no other process has taken over. rebuilding: projections that are being rebuilt for a newer
    version of turnlog. log: why nothing can be written, if the rows were made from a log other than the connected
    one."""

    ready: bool
    behind: int | None
    stalled: list[str]
    stuck: list[str]
    broken: list[str]
    died: list[str]
    rebuilding: list[Rebuilding]
    log: str | None = None


@router.get("/health/live")
async def live() -> Alive:
    """Answers 200 while the server's event loop runs."""
    return Alive()


@router.get("/health/ready", responses={503: {"model": Ready}})
async def ready(request: Request, response: Response) -> Ready:
    """Answers 503 while a projection, a reactor or another loop has stopped, a process has died and no other plays its
    roles, rows that every answer needs are being rebuilt, or Postgres or NATS is unavailable."""
    runtime = request.app.state.runtime
    running = await processes(runtime)
    broken, died = sorted({loop for loop, _ in faults(running)}), deaths(running)
    try:
        lags = await projection_lag(runtime)
    except OtherLog as error:
        response.status_code = 503
        return Ready(False, None, [], [], broken, died, [], str(error))
    stalled, stuck = sorted({lag.projection for lag in lags if lag.stalled}), await stuck_reactors(runtime)
    shares = {lag.projection: lag.rebuilt for lag in lags if lag.rebuilt is not None}
    rebuilding = [Rebuilding(name, int(share * 100), name in READ_WHILE_REBUILT) for name, share in shares.items()]
    is_ready = not (stalled or stuck or broken or died) and all(each.served for each in rebuilding)
    if not is_ready:
        response.status_code = 503
    behind = max((lag.behind for lag in lags), default=0)
    return Ready(is_ready, behind, stalled, stuck, broken, died, rebuilding)


@router.get("/.well-known/jwks.json")
async def jwks(request: Request) -> dict[str, list[dict[str, Any]]]:
    """Returns the public keys of turnlog's own tokens, for other services that accept them (RFC 7517)."""
    access: Access = request.app.state.runtime.cached(Access)
    return access.jwks
