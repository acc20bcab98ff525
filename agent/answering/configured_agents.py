"""Agents of a tenant as stored, changeable data: list, configure, switch off and on."""

import contextlib
from dataclasses import replace
from uuid import UUID

import psycopg
from psycopg_pool import PoolTimeout
from pydantic import ValidationError
from uuid_utils.compat import uuid7

from turnlog.agent.access.unparked import append_unless_parked
from turnlog.agent.answering.agents import DEFAULT_AGENT, answering_agent
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import AgentConfigured, AgentSwitched, Event
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.subjects import check_tenant
from turnlog.projectors.models.operations.agents import AGENTS_THREAD, AgentRow, agents_of

SOURCE = "turnlog/agents"
READS = ("agents",)
TOOLS = ("recall_memory",)
PATIENCE_S = 2.0


class InvalidAgent(TurnlogError):
    """An agent's type or a value of its configuration cannot be used."""

    code = "invalid-agent"


async def list_agents(runtime: Runtime, tenant: str) -> list[AgentRow]:
    """The default agent and all that were made, by type, with the prompt and model that each uses.

    Raises InvalidToken.
    """
    check_tenant(tenant)
    await runtime.settle_thread(tenant, AGENTS_THREAD, READS)
    async with runtime.pool.connection() as conn:
        found = await agents_of(conn, tenant)
    known = {DEFAULT_AGENT: AgentRow(DEFAULT_AGENT)} | {one.type: one for one in found}
    return [_as_used(runtime, known[type_]) for type_ in sorted(known)]


async def get_agent(runtime: Runtime, tenant: str, type_: str) -> AgentRow:
    """Raises NotFound, InvalidToken."""
    found = [one for one in await list_agents(runtime, tenant) if one.type == type_.lower()]
    if not found:
        raise NotFound(f"there is no agent {type_[:80]!r}")
    return found[0]


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
    """Sets all of an agent, or makes it; None takes the server's settings. It holds for the next answer.

    event_id: a call that is repeated with it is stored once.
    Raises InvalidAgent, ThreadParked, InvalidToken.
    """
    given = {"system_prompt": system_prompt, "temperature": temperature, "max_tokens": max_tokens, "model": model}
    try:
        data = AgentConfigured.model_validate({"agent": type_.lower(), **given})
    except ValidationError as error:
        raise _invalid(error) from None
    await append_unless_parked(runtime, _event(tenant, data, event_id), READS)
    return await get_agent(runtime, tenant, type_)


async def switch_agent(
    runtime: Runtime, tenant: str, type_: str, enabled: bool | None = None, *, event_id: UUID | None = None
) -> AgentRow:
    """enabled: None turns it to the other state. event_id: a call that is repeated with it is stored once.

    Raises NotFound, ThreadParked, InvalidToken.
    """
    known = await get_agent(runtime, tenant, type_)
    to = not known.enabled if enabled is None else enabled
    event = _event(tenant, AgentSwitched(agent=known.type, enabled=to), event_id)
    await append_unless_parked(runtime, event, READS)
    return await get_agent(runtime, tenant, known.type)


async def check_answers(runtime: Runtime, tenant: str, type_: str | None) -> None:
    """Whether the agent would answer now. While Postgres is away nothing is refused: the agent looks again before it
    answers. Raises NotFound, AgentDisabled."""
    with contextlib.suppress(psycopg.OperationalError, PoolTimeout):
        async with runtime.pool.connection(PATIENCE_S) as conn:
            await answering_agent(conn, tenant, type_)


def _as_used(runtime: Runtime, agent: AgentRow) -> AgentRow:
    settings = runtime.settings
    prompt = settings.system_prompt if agent.system_prompt is None else agent.system_prompt
    return replace(agent, system_prompt=prompt, model=agent.model or settings.model)


def _event(tenant: str, data: AgentConfigured | AgentSwitched, id_: UUID | None) -> Event:
    return Event(id=id_ or uuid7(), source=SOURCE, tenant=check_tenant(tenant), thread=AGENTS_THREAD, data=data)


def _invalid(error: ValidationError) -> InvalidAgent:
    problem = error.errors()[0]
    return InvalidAgent(f"{problem['loc'][0]}: {problem['msg'].lower()}")
