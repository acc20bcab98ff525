"""Limits of requests: the caller's own with what is left, and changes by operators."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from turnlog.agent.access import limits
from turnlog.agent.access.limits import Limits
from turnlog.agent.access.throttle.guards import Guard
from turnlog.agent.team.configured import entry_agent
from turnlog.consumers.api.principal import Operator, Reader, WriteId
from turnlog.events.contracts import Plan

router = APIRouter(prefix="/api", tags=["limits"])
UserId = Annotated[str, Path(min_length=1, max_length=255, description="A user of the caller's tenant.")]
Limit = Annotated[float, Field(ge=0)]


@router.get("/limits")
async def own_limits(
    caller: Reader,
    thread: Annotated[str | None, Query(max_length=255, description="Include the limit of this conversation.")] = None,
) -> list[Guard]:
    """Lists the limits of the caller, with what is used and left."""
    return await limits.usage_left(*caller.person, caller.identity.role, thread, entry_agent(caller.runtime))


@router.get("/operations/limits")
async def list_limits(caller: Operator) -> Limits:
    """Returns the limits of the tenant's users, by plan."""
    return await limits.limits_of(caller.runtime, caller.tenant)


@router.put("/operations/limits/{plan}")
async def change_limits(plan: Plan, limits_of_plan: dict[str, Limit], caller: Operator, write_id: WriteId) -> Limits:
    """Changes rates and quotas of a plan, from the next request on; those left out stay. The plan `vip` applies to
    admins too.
    """
    return await limits.change_limits(caller.runtime, caller.tenant, plan, limits_of_plan, event_id=write_id)


@router.delete("/operations/users/{user}/rate", status_code=204)
async def reset_rate(user: UserId, caller: Operator) -> Response:
    """Empties the user's windows; the quota stays as it is."""
    await limits.reset_rate(caller.runtime, caller.tenant, user)
    return Response(status_code=204)
