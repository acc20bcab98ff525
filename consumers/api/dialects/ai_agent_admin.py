"""The admin controller of seed E (11.1) under /admin/ai-agent, over the same use cases, of the admin's tenant."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field

from turnlog.agent.access import limits
from turnlog.agent.access.limits import Limits
from turnlog.agent.answering import configured_agents
from turnlog.agent.operations import usage
from turnlog.agent.operations.usage import By, Usage
from turnlog.consumers.api.bodies import FINITE
from turnlog.consumers.api.principal import Operator, WriteId
from turnlog.consumers.api.routes.limits import UserId
from turnlog.events.contracts import Plan
from turnlog.projectors.models.operations.agents import AgentRow

router = APIRouter(prefix="/admin/ai-agent", tags=["seed E"])
AGENT_TYPE = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"
AgentType = Annotated[str, Path(pattern=AGENT_TYPE, description="In any case of its letters.")]


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


class AgentChange(BaseModel):
    """All of an agent; what is left out is as the server's settings. temperature: of the model, 0 to 2."""

    model_config = FINITE
    systemPrompt: str | None = Field(None, max_length=100_000)
    temperature: float | None = Field(None, ge=0, le=2)
    maxTokens: int | None = Field(None, ge=1, le=1_000_000)
    model: str | None = Field(None, min_length=1, max_length=200)


class AgentConfig(AgentChange):
    """systemPrompt, model: as they are used. temperature, maxTokens: null leaves them to the model's server."""

    type: str
    enabled: bool
    tools: list[str]
    updatedAt: datetime | None


class Toggle(BaseModel):
    """enabled: null turns it to the other state."""

    enabled: bool | None = None


@router.get("/agents")
async def list_agents(caller: Operator) -> list[AgentConfig]:
    """The agent that answers where none is named, and those that were made."""
    return [_agent(one) for one in await configured_agents.list_agents(caller.runtime, caller.tenant)]


@router.get("/agents/{type}")
async def show_agent(type: AgentType, caller: Operator) -> AgentConfig:
    return _agent(await configured_agents.get_agent(caller.runtime, caller.tenant, type))


@router.put("/agents/{type}")
async def configure_agent(type: AgentType, given: AgentChange, caller: Operator, write_id: WriteId) -> AgentConfig:
    """Changes an agent, or makes it. It holds for the next answer."""
    return _agent(
        await configured_agents.configure_agent(
            caller.runtime,
            caller.tenant,
            type,
            system_prompt=given.systemPrompt,
            temperature=given.temperature,
            max_tokens=given.maxTokens,
            model=given.model,
            event_id=write_id,
        )
    )


@router.put("/agents/{type}/toggle")
async def toggle_agent(type: AgentType, caller: Operator, write_id: WriteId, given: Toggle = Toggle()) -> AgentConfig:
    """An agent that is switched off refuses questions with 409 and the code agent-disabled."""
    return _agent(
        await configured_agents.switch_agent(caller.runtime, caller.tenant, type, given.enabled, event_id=write_id)
    )


@router.get("/users/{user}/usage")
async def user_usage(user: UserId, caller: Operator, by: By = "day") -> list[Usage]:
    return await usage.usage(caller.runtime, caller.tenant, user, by)


@router.delete("/users/{user}/rate-limit", status_code=204)
async def reset_rate(user: UserId, caller: Operator) -> Response:
    await limits.reset_rate(caller.runtime, caller.tenant, user)
    return Response(status_code=204)


def _agent(found: AgentRow) -> AgentConfig:
    return AgentConfig(
        type=found.type,
        enabled=found.enabled,
        systemPrompt=found.system_prompt,
        temperature=found.temperature,
        maxTokens=found.max_tokens,
        model=found.model,
        tools=list(configured_agents.TOOLS),
        updatedAt=found.updated_at,
    )
