"""Chooses the agent of a tenant that answers if the server has no team."""

import contextlib

import psycopg
from psycopg_pool import PoolTimeout

from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.operations.agents import AgentRow, agents_of

DEFAULT_AGENT = "orchestrator"  # the default agent, which every tenant has
PATIENCE_S = 2.0


class AgentDisabled(TurnlogError):
    """The agent was switched off by an administrator; it answers again once it is switched on."""

    code = "agent-disabled"


async def answering_agent(conn: Connection, tenant: str, type_: str | None) -> AgentRow:
    """Returns the agent that answers a request, with its tenant's settings. type_: None is the default agent.

    Raises NotFound, AgentDisabled.
    """
    wanted = DEFAULT_AGENT if type_ is None else type_.replace("\0", "\ufffd")  # Postgres text cannot contain NUL
    rows = await agents_of(conn, tenant, wanted)
    if not rows and wanted != DEFAULT_AGENT:
        raise NotFound(f"there is no agent {wanted[:80]!r}; PUT /admin/ai-agent/agents/{{type}} makes one")
    agent = rows[0] if rows else AgentRow(DEFAULT_AGENT)
    if not agent.enabled:
        raise AgentDisabled(f"the agent {wanted!r} is switched off; an administrator can switch it on")
    return agent


async def check_answers(runtime: Runtime, tenant: str, type_: str | None) -> None:
    """Raises NotFound or AgentDisabled if the agent would not answer now. While Postgres is unavailable, nothing is
    refused, because the agent checks again before it answers.
    """
    with contextlib.suppress(psycopg.OperationalError, PoolTimeout):
        async with runtime.pool.connection(PATIENCE_S) as conn:
            try:
                await answering_agent(conn, tenant, type_)
            except NotFound:
                if runtime.settings.team is None:  # agents of a team need no row of the tenant
                    raise
