"""agents: a tenant's agents as they were configured, and whether they are switched on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from psycopg.rows import class_row

from turnlog.events.contracts import REMOVALS, AgentConfigured, AgentSwitched, Recorded
from turnlog.events.subjects import AGENTS
from turnlog.projectors.engine.changes import Change, Row, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz
from turnlog.projectors.engine.writer import Connection

AGENTS_THREAD = AGENTS + "tenant"

agents = thread_table(
    "agents",
    sa.Column("type", sa.Text, primary_key=True),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("system_prompt", sa.Text),
    sa.Column("temperature", sa.Float),
    sa.Column("max_tokens", sa.Integer),
    sa.Column("model", sa.Text),
    sa.Column("updated_at", timestamptz(), nullable=False),
    sa.Column("name", sa.Text),
    sa.Column("tools", sa.ARRAY(sa.Text)),
    sa.Column("delegates", sa.ARRAY(sa.Text)),
)
COLUMNS = tuple(column.name for column in agents.columns)
_CONFIGURED = tuple((name, f"excluded.{name}") for name in COLUMNS[4:])
_SWITCHED = tuple((name, f"excluded.{name}") for name in ("enabled", "updated_at"))


@dataclass(frozen=True, slots=True)
class AgentRow:
    """The configuration of an agent; for a value of None, the setting of its team or of the server is used."""

    type: str
    enabled: bool = True
    system_prompt: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    model: str | None = None
    updated_at: datetime | None = None
    name: str | None = None
    tools: Sequence[str] | None = None
    delegates: Sequence[str] | None = None


async def agents_of(conn: Connection, tenant: str, type_: str | None = None) -> list[AgentRow]:
    """Returns the configured agents, ordered by type. type_: returns only the agent of this type."""
    cursor = conn.cursor(row_factory=class_row(AgentRow))
    await cursor.execute(
        "SELECT type, enabled, system_prompt, temperature, max_tokens, model, updated_at, name, tools, delegates "
        "FROM agents "
        "WHERE tenant = %s AND thread_id = %s AND (%s::text IS NULL OR type = %s) ORDER BY type",
        (tenant, AGENTS_THREAD, type_, type_),
    )
    return await cursor.fetchall()


def project(batch: Sequence[Recorded]) -> list[Change]:
    return [_change(recorded) for recorded in batch]


def _change(recorded: Recorded) -> Change:
    event, data = recorded.event, recorded.event.data
    if isinstance(data, AgentSwitched):
        row: Row = (event.tenant, event.thread, data.agent, data.enabled, *(None,) * 4, event.time, *(None,) * 3)
        return Upsert(agents, COLUMNS, [row], _SWITCHED)
    assert isinstance(data, AgentConfigured)
    set_ = (data.system_prompt, data.temperature, data.max_tokens, data.model)
    lists = (None if names is None else list(names) for names in (data.tools, data.delegates))
    row = (event.tenant, event.thread, data.agent, True, *set_, event.time, data.name, *lists)
    return Upsert(agents, COLUMNS, [row], _CONFIGURED)


AGENTS_MODEL = Projection("agents", 1, (agents,), REMOVALS | {"agent_configured", "agent_switched"}, project)
