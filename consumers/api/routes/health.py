"""Liveness and readiness; the one group of routes without a token."""

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from turnlog.agent.use_cases.lag import projection_lag
from turnlog.projectors.engine.lag import Lag

router = APIRouter(tags=["health"])


@dataclass(frozen=True, slots=True)
class Alive:
    alive: bool = True


@dataclass(frozen=True, slots=True)
class Ready:
    """ready: every projection keeps up with the log. behind: events left to apply, of the slowest projection."""

    ready: bool
    behind: int
    stalled: list[str]


@router.get("/health/live")
async def live() -> Alive:
    """The server's event loop answers."""
    return Alive()


@router.get("/health/ready", responses={503: {"model": Ready}})
async def ready(request: Request, response: Response) -> Ready:
    """503 while a projection has stopped, or Postgres or NATS is away."""
    found = await projection_lag(request.app.state.runtime)
    stalled = sorted({one.projection for one in found if one.stalled})
    if stalled:
        response.status_code = 503
    return Ready(not stalled, _furthest(found), stalled)


def _furthest(found: list[Lag]) -> int:
    return max((one.behind for one in found), default=0)
