"""Agents of a tenant, which are stored data: list, configure and switch them, and find the one that answers."""

import contextlib
from dataclasses import replace
from uuid import UUID

import psycopg
from psycopg_pool import PoolTimeout
from pydantic import ValidationError
from uuid_utils.compat import uuid7

from turnlog.agent.access.unparked import append_unless_parked
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import AgentConfigured, AgentSwitched, Event
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.subjects import check_tenant
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.operations.agents import AGENTS_THREAD, AgentRow, agents_of

DEFAULT_AGENT = "orchestrator"  # answers where no agent is named; every tenant has it
SOURCE = "turnlog/agents"
READS = ("agents",)
TOOLS = ("recall_memory",)
PATIENCE_S = 2.0


class AgentDisabled(TurnlogError):
    """The agent was switched off by an administrator; it answers again once it is switched on."""

    code = "agent-disabled"


class InvalidAgent(TurnlogError):
    """An agent's type or a value of its configuration cannot be used."""

    code = "invalid-agent"


async def list_agents(runtime: Runtime, tenant: str) -> list[AgentRow]:
    """Lists the default agent and all that were made, by type, with the prompt and model that each uses.

    Raises InvalidToken.
    """
    check_tenant(tenant)
    async with runtime.reading(*READS, of=(tenant, AGENTS_THREAD)) as conn:
        rows = await agents_of(conn, tenant)
    agents = {DEFAULT_AGENT: AgentRow(DEFAULT_AGENT)} | {row.type: row for row in rows}
    settings = runtime.settings
    return [
        replace(
            agent,
            system_prompt=settings.system_prompt if agent.system_prompt is None else agent.system_prompt,
            model=agent.model or settings.model,
            tools=TOOLS if agent.tools is None else agent.tools,
            delegates=agent.delegates or (),
        )
        for _, agent in sorted(agents.items())
    ]


async def get_agent(runtime: Runtime, tenant: str, type_: str) -> AgentRow:
    """Returns the agent of a type. Raises NotFound, InvalidToken."""
    for agent in await list_agents(runtime, tenant):
        if agent.type == type_.lower():
            return agent
    raise NotFound(f"there is no agent {type_[:80]!r}")


async def configure_agent(
    runtime: Runtime,
    tenant: str,
    type_: str,
    *,
    system_prompt: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    model: str | None = None,
    event_id: UUID | None = None,
) -> AgentRow:
    """Sets all values of an agent, or makes it; None takes the server's settings. They hold for the next answer.

    event_id: a call that is repeated with it is stored once.
    Raises InvalidAgent, ThreadParked, InvalidToken.
    """
    given = {"system_prompt": system_prompt, "temperature": temperature, "max_tokens": max_tokens, "model": model}
    try:
        data = AgentConfigured.model_validate({"agent": type_.lower(), **given})
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidAgent(f"{problem['loc'][0]}: {problem['msg'].lower()}") from None
    await append_unless_parked(runtime, _event(tenant, data, event_id), READS)
    return await get_agent(runtime, tenant, type_)


async def switch_agent(
    runtime: Runtime, tenant: str, type_: str, enabled: bool | None = None, *, event_id: UUID | None = None
) -> AgentRow:
    """Switches an agent on or off. enabled: None turns it to the other state. event_id: a call that is repeated with it
    is stored once.

    Raises NotFound, ThreadParked, InvalidToken.
    """
    known = await get_agent(runtime, tenant, type_)
    to = not known.enabled if enabled is None else enabled
    event = _event(tenant, AgentSwitched(agent=known.type, enabled=to), event_id)
    await append_unless_parked(runtime, event, READS)
    return await get_agent(runtime, tenant, known.type)


async def answering_agent(conn: Connection, tenant: str, type_: str | None) -> AgentRow:
    """Returns the agent that answers a request, with what its tenant set for it. type_: None is the default agent.

    Raises NotFound, AgentDisabled.
    """
    wanted = DEFAULT_AGENT if type_ is None else type_.replace("\0", "\ufffd")  # Postgres text cannot hold NUL
    rows = await agents_of(conn, tenant, wanted)
    if not rows and wanted != DEFAULT_AGENT:
        raise NotFound(f"there is no agent {wanted[:80]!r}; PUT /admin/ai-agent/agents/{{type}} makes one")
    agent = rows[0] if rows else AgentRow(DEFAULT_AGENT)
    if not agent.enabled:
        raise AgentDisabled(f"the agent {wanted!r} is switched off; an administrator can switch it on")
    return agent


async def check_answers(runtime: Runtime, tenant: str, type_: str | None) -> None:
    """Checks that the agent would answer now. While Postgres is away nothing is refused: the agent looks again before
    it answers. Raises NotFound, AgentDisabled.
    """
    with contextlib.suppress(psycopg.OperationalError, PoolTimeout):
        async with runtime.pool.connection(PATIENCE_S) as conn:
            try:
                await answering_agent(conn, tenant, type_)
            except NotFound:
                if runtime.settings.team is None:  # a team has agents that no tenant has changed
                    raise


def _event(tenant: str, data: AgentConfigured | AgentSwitched, id_: UUID | None) -> Event:
    return Event(id=id_ or uuid7(), source=SOURCE, tenant=check_tenant(tenant), thread=AGENTS_THREAD, data=data)
