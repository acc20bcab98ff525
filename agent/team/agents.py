"""Lists, configures and switches the agents of a tenant, and checks that an agent can answer."""

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypedDict
from uuid import UUID

import psycopg
from psycopg_pool import PoolTimeout
from pydantic import ValidationError
from uuid_utils.compat import uuid7

from turnlog.agent.access.parked_threads import append_unless_parked
from turnlog.agent.answering.single_agent import DEFAULT_AGENT, PATIENCE_S
from turnlog.agent.runtime import Runtime
from turnlog.agent.team.configured import choose, server_team, team_of_tenant
from turnlog.agent.team.teams import Agent
from turnlog.events.contracts import AgentConfigured, AgentSwitched, Event
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.subjects import check_tenant
from turnlog.projectors.models.operations.agents import AGENTS_THREAD, AgentRow, agents_of

SOURCE = "turnlog/agents"
READS = ("agents",)
TOOLS = ("recall_memory",)  # tools of an agent without a team


class AgentChanges(TypedDict, total=False):
    """Values of an agent; None means the team's or the server's value."""

    system_prompt: str | None
    temperature: float | None
    max_tokens: int | None
    model: str | None
    name: str | None
    tools: Sequence[str] | None
    delegates: Sequence[str] | None


FIELDS = tuple(AgentChanges.__annotations__)


class InvalidAgent(TurnlogError):
    """An agent's type or a value of its configuration cannot be used."""

    code = "invalid-agent"


async def list_agents(runtime: Runtime, tenant: str) -> list[AgentRow]:
    """Returns all agents, sorted by type, with the values in use: the agents of the server's team, or else the default
    agent, and the agents that the tenant has created. Raises InvalidToken, InvalidTeam.
    """
    check_tenant(tenant)
    async with runtime.reading(*READS, of=(tenant, AGENTS_THREAD)) as conn:
        rows = {row.type: row for row in await agents_of(conn, tenant)}
        server = server_team(runtime)
        team = None if server is None else (await team_of_tenant(conn, server, tenant)).team
    model = runtime.settings.model
    if team is not None:
        return [_row(agent, rows.get(agent.type), model) for _, agent in sorted(team.agents.items())]
    prompt = runtime.settings.system_prompt
    return [
        replace(
            row,
            system_prompt=prompt if row.system_prompt is None else row.system_prompt,
            model=row.model or model,
            name=row.name or row.type,
            tools=TOOLS,
            delegates=(),
        )
        for _, row in sorted(({DEFAULT_AGENT: AgentRow(DEFAULT_AGENT)} | rows).items())
    ]


async def get_agent(runtime: Runtime, tenant: str, type_: str) -> AgentRow:
    """Returns the agent of a type. Raises NotFound, InvalidToken, InvalidTeam."""
    agents = await list_agents(runtime, tenant)
    for agent in agents:
        if agent.type == type_.lower():
            return agent
    raise NotFound(f"there is no agent {type_[:80]!r}; there are {', '.join(agent.type for agent in agents)}")


def tool_names(runtime: Runtime) -> list[str]:
    """Returns the names of all tools that agents can be given. Raises InvalidTeam."""
    server = server_team(runtime)
    return sorted(TOOLS if server is None else server.tools.names)


async def configure_agent(
    runtime: Runtime, tenant: str, type_: str, values: AgentChanges, *, event_id: UUID | None = None
) -> AgentRow:
    """Sets all values of an agent, or creates it. For a missing value, that of the team or the server applies. The
    change takes effect with the next answer.

    tools: names of tools it may call. delegates: agents it may hand a question to. Both need a team. event_id: repeated
    calls with the same id are stored once.
    Raises InvalidAgent, ThreadParked, InvalidToken, InvalidTeam.
    """
    data = checked(type_, values)
    if data.tools is not None or data.delegates is not None:
        await _check_lists(runtime, tenant, data)
    await append_unless_parked(runtime, _event(tenant, data, event_id), READS)
    return await get_agent(runtime, tenant, type_)


def checked(type_: str, values: AgentChanges) -> AgentConfigured:
    """Returns the event that sets these values, without checking that the tools and delegates exist.

    Raises InvalidAgent.
    """
    if unknown := sorted(values.keys() - FIELDS):
        raise InvalidAgent(f"{unknown[0][:80]}: an agent has no such value; it has {', '.join(FIELDS)}")
    delegates = values.get("delegates")
    lowered = None if delegates is None else tuple(str(name).lower() for name in delegates)
    try:
        return AgentConfigured.model_validate({"agent": type_.lower(), **values, "delegates": lowered})
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidAgent(f"{problem['loc'][0]}: {problem['msg'].lower()}") from None


async def change_agent(
    runtime: Runtime, tenant: str, type_: str, changes: AgentChanges, *, event_id: UUID | None = None
) -> AgentRow:
    """Sets some values of an agent, or creates it; other values that the tenant has set stay.

    event_id: repeated calls with the same id are stored once. Raises the errors of configure_agent.
    """
    checked(type_, changes)
    async with runtime.reading(*READS, of=(check_tenant(tenant), AGENTS_THREAD)) as conn:
        rows = await agents_of(conn, tenant, type_.lower())
    values = AgentChanges()
    if rows:
        row = rows[0]
        values = AgentChanges(
            system_prompt=row.system_prompt,
            temperature=row.temperature,
            max_tokens=row.max_tokens,
            model=row.model,
            name=row.name,
            tools=row.tools,
            delegates=row.delegates,
        )
    values.update(changes)
    return await configure_agent(runtime, tenant, type_, values, event_id=event_id)


async def switch_agent(
    runtime: Runtime, tenant: str, type_: str, enabled: bool | None = None, *, event_id: UUID | None = None
) -> AgentRow:
    """Switches an agent on or off. enabled: None toggles the current state. event_id: repeated calls with the same id
    are stored once.

    Raises NotFound, ThreadParked, InvalidToken, InvalidTeam.
    """
    known = await get_agent(runtime, tenant, type_)
    to = not known.enabled if enabled is None else enabled
    event = _event(tenant, AgentSwitched(agent=known.type, enabled=to), event_id)
    await append_unless_parked(runtime, event, READS)
    return await get_agent(runtime, tenant, known.type)


async def check_agent(runtime: Runtime, tenant: str, type_: str | None) -> None:
    """If the server has a team, checks that it has this agent and that the agent is switched on. While Postgres is
    unavailable, nothing is refused, because the worker checks again before it answers.

    Raises NotFound, AgentDisabled, InvalidTeam.
    """
    server = server_team(runtime)
    if server is None or type_ is None:
        return
    with contextlib.suppress(psycopg.OperationalError, PoolTimeout):
        async with runtime.pool.connection(PATIENCE_S) as conn:
            choose((await team_of_tenant(conn, server, tenant)).team, "", type_)


async def _check_lists(runtime: Runtime, tenant: str, data: AgentConfigured) -> None:
    """Raises InvalidAgent for tools and delegates that do not exist."""
    server = server_team(runtime)
    if server is None:
        if data.delegates or (data.tools is not None and data.tools != TOOLS):
            raise InvalidAgent("tools and delegates belong to the agents of a team; TURNLOG_TEAM names one")
        return
    async with runtime.reading(*READS, of=(tenant, AGENTS_THREAD)) as conn:
        agents = (await team_of_tenant(conn, server, tenant)).team.agents
    _check_known("tools", "a tool", data.tools or (), server.tools.names)
    _check_known("delegates", "another agent", data.delegates or (), agents.keys() - {data.agent})


def _check_known(field: str, what: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            others = ", ".join(sorted(known)) or "none"
            raise InvalidAgent(f"{field}: {name[:80]!r} is not the name of {what}; there are {others}")


def _row(agent: Agent, set_: AgentRow | None, model: str) -> AgentRow:
    return AgentRow(
        type=agent.type,
        enabled=agent.enabled,
        system_prompt=agent.prompt,
        temperature=agent.temperature,
        max_tokens=agent.max_tokens,
        model=agent.model or model,
        updated_at=None if set_ is None else set_.updated_at,
        name=agent.name,
        tools=agent.tools,
        delegates=agent.delegates,
    )


def _event(tenant: str, data: AgentConfigured | AgentSwitched, id_: UUID | None) -> Event:
    return Event(id=id_ or uuid7(), source=SOURCE, tenant=check_tenant(tenant), thread=AGENTS_THREAD, data=data)
