"""The admin controller of seed E (11.1) under /admin/ai-agent, over the same use cases, of the admin's tenant."""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from turnlog.agent.use_cases import limits, usage
from turnlog.agent.use_cases.limits import Limits
from turnlog.agent.use_cases.usage import By, Usage
from turnlog.consumers.api.caller import Operator
from turnlog.consumers.api.routes.limits import UserId
from turnlog.events.contracts import Plan

router = APIRouter(prefix="/admin/ai-agent", tags=["seed E"])


class Quota(BaseModel):
    """monthlyCost: USD. plan: vip is for admins too."""

    plan: Plan = "user"
    dailyTokens: float | None = Field(None, ge=0)
    monthlyCost: float | None = Field(None, ge=0)


class Rate(BaseModel):
    """limit: requests of a minute."""

    plan: Plan = "user"
    limit: float = Field(ge=0)


@router.get("/config")
async def config(caller: Operator) -> Limits:
    """Rates and quotas by plan."""
    return await limits.limits_of(caller.runtime, caller.tenant)


@router.put("/config/quota")
async def set_quota(given: Quota, caller: Operator) -> Limits:
    named = {"tokens_per_day": given.dailyTokens, "usd_per_month": given.monthlyCost}
    changed = {name: most for name, most in named.items() if most is not None}
    return await limits.change_limits(caller.runtime, caller.tenant, given.plan, changed)


@router.put("/config/rate-limit/{type}")
async def set_rate(type: Literal["user", "conversation", "agent"], given: Rate, caller: Operator) -> Limits:
    return await limits.change_limits(caller.runtime, caller.tenant, given.plan, {f"{type}_per_minute": given.limit})


@router.get("/users/{user}/usage")
async def user_usage(user: UserId, caller: Operator, by: By = "day") -> list[Usage]:
    return await usage.usage(caller.runtime, caller.tenant, user, by)


@router.delete("/users/{user}/rate-limit", status_code=204)
async def reset_rate(user: UserId, caller: Operator) -> Response:
    await limits.reset_rate(caller.runtime, caller.tenant, user)
    return Response(status_code=204)
