"""The agent that answers a request: what its tenant set for it, over the server's settings."""

from turnlog.events.errors import NotFound, TurnlogError
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.operations.agents import AgentRow, agents_of

DEFAULT_AGENT = "orchestrator"  # answers where no agent is named; every tenant has it


class AgentDisabled(TurnlogError):
    """The agent was switched off by an administrator; it answers again once it is switched on."""

    code = "agent-disabled"


async def answering_agent(conn: Connection, tenant: str, type_: str | None) -> AgentRow:
    """type_: None is the default agent. Raises NotFound, AgentDisabled."""
    wanted = DEFAULT_AGENT if type_ is None else type_.replace("\0", "\ufffd")  # Postgres text cannot hold NUL
    found = await agents_of(conn, tenant, wanted)
    if not found and wanted != DEFAULT_AGENT:
        raise NotFound(f"there is no agent {wanted[:80]!r}; PUT /admin/ai-agent/agents/{{type}} makes one")
    agent = found[0] if found else AgentRow(DEFAULT_AGENT)
    if not agent.enabled:
        raise AgentDisabled(f"the agent {wanted!r} is switched off; an administrator can switch it on")
    return agent
