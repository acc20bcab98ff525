"""Routes of a tenant's administrators under /admin/ai-agent: limits, agents, usage, traces, circuit breakers."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from turnlog.agent.access import limits
from turnlog.agent.access.limits import Limits
from turnlog.agent.operations import breakers, gauges, usage
from turnlog.agent.operations.all_processes import Reply, ask_processes
from turnlog.agent.operations.breakers import Circuit
from turnlog.agent.operations.usage import By, Usage
from turnlog.agent.recent_traces import SLOW_MS, Trace
from turnlog.agent.team import agents
from turnlog.agent.team.agents import AgentChanges
from turnlog.consumers.api.bodies import CamelBody, CamelRecord
from turnlog.consumers.api.pages import Limit
from turnlog.consumers.api.principal import Operator, ServerOperator, WriteId
from turnlog.consumers.api.routes.limits import UserId, reset_rate
from turnlog.events.contracts import LimitName, Plan
from turnlog.projectors.models.operations.agents import AgentRow

router = APIRouter(prefix="/admin/ai-agent", tags=["ai-agent administration"])
AGENT_TYPE = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"
AgentType = Annotated[str, Path(pattern=AGENT_TYPE, description="Upper or lower case.")]


class Quota(BaseModel):
    """Changes of a plan's quotas. monthlyCost: in USD. plan: `vip` applies to admins too."""

    model_config = ConfigDict(extra="forbid")
    plan: Plan = "user"
    tokens_per_day: float | None = Field(None, ge=0, alias="dailyTokens")
    usd_per_month: float | None = Field(None, ge=0, alias="monthlyCost")
    embedding_tokens_per_day: float | None = Field(None, ge=0, alias="dailyEmbeddingTokens")


class Rate(BaseModel):
    """A limit of requests. limit: requests per window, or at the same time for the type `concurrent`. Only a user's
    limits have a window of an hour."""

    model_config = ConfigDict(extra="forbid")
    plan: Plan = "user"
    window: Literal["minute", "hour"] = "minute"
    limit: float = Field(ge=0)


class AgentChange(CamelBody):
    """Values of an agent; null means the value of its team or of the server's settings. temperature: of the model, 0 to
    2. tools: names of tools it may call. delegates: agents it may hand a question to."""

    model_config = ConfigDict(extra="forbid")
    system_prompt: str | None = Field(None, max_length=100_000)
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    model: str | None = Field(None, min_length=1, max_length=200)
    name: str | None = Field(None, min_length=1, max_length=200)
    tools: list[Annotated[str, Field(min_length=1, max_length=200)]] | None = Field(None, max_length=200)
    delegates: list[Annotated[str, Field(pattern=AGENT_TYPE)]] | None = Field(None, max_length=100)

    def values(self) -> AgentChanges:
        """Returns the values that the body sets."""
        named: Any = self.model_dump(exclude_unset=True)
        changes: AgentChanges = named
        return changes


class AgentConfig(CamelRecord):
    """An agent with the values in use. temperature, maxTokens: null leaves the choice to the model's server."""

    type: str
    name: str
    enabled: bool
    system_prompt: str
    temperature: float | None
    max_tokens: int | None
    model: str
    tools: list[str]
    delegates: list[str]
    updated_at: datetime | None


class Toggle(BaseModel):
    """Switches an agent on or off. enabled: null toggles the current state."""

    model_config = ConfigDict(extra="forbid")
    enabled: bool | None = None


class Config(BaseModel):
    """The limits and agents of a tenant, and the server's models. user, vip: the limits of each plan, by name. models:
    names of models by purpose."""

    user: dict[LimitName, float]
    vip: dict[LimitName, float]
    agents: list[AgentConfig]
    models: dict[str, str]


class SpanLog(BaseModel):
    timestamp: float
    message: str


class SpanRecord(CamelRecord):
    """A span of a request. Times are in ms since 1970, the duration in ms."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    start_time: float
    end_time: float
    duration: float
    status: Literal["ok", "error"]
    tags: dict[str, str]
    logs: list[SpanLog]


class TraceRecord(CamelRecord):
    """A request and its spans, the request's own first. slow: it took over 5 s. role, process: where it was
    answered.
    """

    role: str
    process: str
    trace_id: str
    name: str
    start_time: float
    duration: float
    status: Literal["ok", "error"]
    slow: bool
    spans: list[SpanRecord]

    @classmethod
    def of(cls, trace: Trace, reply: Reply) -> "TraceRecord":
        request = trace.spans[0]
        return cls(
            role=reply.role,
            process=reply.process,
            trace_id=trace.trace_id,
            name=request.name,
            start_time=request.start_time,
            duration=request.duration,
            status="error" if trace.failed else "ok",
            slow=request.duration > SLOW_MS,
            spans=[
                SpanRecord(
                    trace_id=trace.trace_id,
                    span_id=span.span_id,
                    parent_span_id=span.parent_id,
                    name=span.name,
                    start_time=span.start_time,
                    end_time=span.start_time + span.duration,
                    duration=span.duration,
                    status=span.status,
                    tags={name: str(value) for name, value in span.tags.items()},
                    logs=[SpanLog(timestamp=at, message=message) for at, message in span.logs],
                )
                for span in trace.spans
            ],
        )


router.delete("/users/{user}/rate-limit", status_code=204)(reset_rate)


@router.get("/config")
async def show_config(caller: Operator) -> Config:
    """Returns the limits of the tenant's users, its agents, and the models of the server."""
    of_plan = await limits.limits_of(caller.runtime, caller.tenant)
    models = {"chat": caller.runtime.models.chat.model, "embeddings": caller.runtime.models.embedder.model}
    known = await agents.list_agents(caller.runtime, caller.tenant)
    return Config(**of_plan, agents=[AgentConfig.model_validate(agent) for agent in known], models=models)


@router.put("/config/quota")
async def set_quota(quota: Quota, caller: Operator) -> Limits:
    """Changes the quotas of a plan; quotas that are left out stay."""
    changed = quota.model_dump(exclude={"plan"}, exclude_none=True)
    return await limits.change_limits(caller.runtime, caller.tenant, quota.plan, changed)


@router.put("/config/rate-limit/{type}")
async def set_rate(
    type: Literal["user", "conversation", "agent", "concurrent"], rate: Rate, caller: Operator
) -> Limits:
    """Changes how many requests are allowed per window for a user, a conversation or an agent, or at the same time for
    a user.
    """
    name = type if type == "concurrent" else f"{type}_per_{rate.window}"
    return await limits.change_limits(caller.runtime, caller.tenant, rate.plan, {name: rate.limit})


@router.get("/agents", response_model=list[AgentConfig])
async def list_agents(caller: Operator) -> list[AgentRow]:
    """Lists the agents of the server's team, or the one that answers without a team, and agents that were created
    here.
    """
    return await agents.list_agents(caller.runtime, caller.tenant)


@router.get("/agents/{type}", response_model=AgentConfig)
async def show_agent(type: AgentType, caller: Operator) -> AgentRow:
    """Returns an agent as it is configured."""
    return await agents.get_agent(caller.runtime, caller.tenant, type)


@router.put("/agents/{type}", response_model=AgentConfig)
async def configure_agent(type: AgentType, change: AgentChange, caller: Operator, write_id: WriteId) -> AgentRow:
    """Sets all values of an agent, or creates it. A value that is left out gets that of the team or of the server. They
    apply from the next answer on."""
    return await agents.configure_agent(caller.runtime, caller.tenant, type, change.values(), event_id=write_id)


@router.patch("/agents/{type}", response_model=AgentConfig)
async def change_agent(type: AgentType, change: AgentChange, caller: Operator, write_id: WriteId) -> AgentRow:
    """Changes some values of an agent, or creates it. Values that are left out stay; null restores the value of its
    team or of the server."""
    return await agents.change_agent(caller.runtime, caller.tenant, type, change.values(), event_id=write_id)


@router.put("/agents/{type}/toggle", response_model=AgentConfig)
async def toggle_agent(type: AgentType, caller: Operator, write_id: WriteId, toggle: Toggle = Toggle()) -> AgentRow:
    """Switches an agent on or off. Questions to an agent that is off are refused with 409 and the code
    agent-disabled.
    """
    return await agents.switch_agent(caller.runtime, caller.tenant, type, toggle.enabled, event_id=write_id)


@router.get("/tools")
async def list_tools(caller: Operator) -> list[str]:
    """Lists the names of the tools that agents can be given."""
    return agents.tool_names(caller.runtime)


@router.get("/users/{user}/usage")
async def user_usage(user: UserId, caller: Operator, by: By = "day") -> list[Usage]:
    """Returns a user's calls, tokens and cost of language and embedding models."""
    return await usage.usage(caller.runtime, caller.tenant, user, by)


@router.get("/metrics")
async def metrics_summary(caller: ServerOperator) -> dict[str, Any]:
    """Returns a summary of the metrics of all processes since their start; /admin/ai-agent/metrics/prometheus has all
    of them, by role."""
    return await gauges.whole_summary(caller.system)


@router.get("/traces/recent")
async def recent_traces(caller: Operator, limit: Limit = 50) -> list[TraceRecord]:
    """Lists the tenant's latest requests in all processes, newest first."""
    return await _traces(caller, limit)


@router.get("/traces/errors")
async def failed_traces(caller: Operator, limit: Limit = 50) -> list[TraceRecord]:
    """Lists the latest requests that ended with an error, in the form of /traces/recent."""
    return await _traces(caller, limit, only_failed=True)


async def _traces(caller: Operator, limit: int, only_failed: bool = False) -> list[TraceRecord]:
    which = {"tenant": caller.tenant, "limit": limit, "only_failed": only_failed}
    replies = await ask_processes(caller.system, "traces", **which)
    records = [TraceRecord.of(trace, reply) for reply in replies for trace in reply.traces]
    return sorted(records, key=lambda trace: -trace.start_time)[:limit]


@router.get("/circuit-breakers")
async def list_breakers(caller: Operator) -> list[Circuit]:
    """Lists the circuit breakers of all processes. All tenants share them."""
    return await breakers.list_breakers(caller.system)


@router.delete("/circuit-breakers/{service}")
async def reset_breaker(service: Annotated[str, Path(max_length=100)], caller: ServerOperator, _: WriteId) -> Circuit:
    """Closes the circuit breakers of a service in every process."""
    return await breakers.reset_breaker(caller.system, service)
