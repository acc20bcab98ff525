"""Creates tables for runs of agents and their steps; stores name, tools and delegates of agents."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    thread_columns = (sa.Column("tenant", sa.Text, primary_key=True), sa.Column("thread_id", sa.Text, primary_key=True))
    op.create_table(
        "agent_runs",
        *thread_columns,
        sa.Column("run_id", UUID(as_uuid=True), primary_key=True, comment="id of the event that asked"),
        sa.Column("user_id", sa.Text),
        sa.Column("agent", sa.Text, nullable=False, comment="who speaks, the last one that was handed the question"),
        sa.Column("status", sa.Text, nullable=False, comment="running, solved or failed"),
        sa.Column("code", sa.Text, comment="why it failed"),
        sa.Column("started_at", moment, nullable=False),
        sa.Column("ended_at", moment),
        sa.Column("tokens_in", sa.BigInteger, nullable=False),
        sa.Column("tokens_out", sa.BigInteger, nullable=False),
        sa.Column("cost_micro_usd", sa.BigInteger, nullable=False),
        sa.Column("first_seq", sa.BigInteger, nullable=False, comment="sequence of the first step"),
    )
    op.create_index("agent_runs_user", "agent_runs", ["tenant", "user_id", "started_at"])
    thread_columns = (sa.Column("tenant", sa.Text, primary_key=True), sa.Column("thread_id", sa.Text, primary_key=True))
    op.create_table(
        "agent_run_steps",
        *thread_columns,
        sa.Column("run_id", UUID(as_uuid=True), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False, comment="plan, call, result, delegation or end"),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("depth", sa.SmallInteger, nullable=False),
        sa.Column("name", sa.Text, comment="of the tool, or of the agent that takes over"),
        sa.Column("call_id", sa.Text),
        sa.Column("text", sa.Text, nullable=False, comment="the plan, arguments, result or task"),
        sa.Column("calls", JSONB, comment="of a plan: id, name, arguments, after"),
        sa.Column("is_error", sa.Boolean, nullable=False),
        sa.Column("latency_ms", sa.Integer),
        sa.Column("tokens_in", sa.BigInteger, nullable=False),
        sa.Column("tokens_out", sa.BigInteger, nullable=False),
        sa.Column("cost_micro_usd", sa.BigInteger, nullable=False),
        sa.Column("at", moment, nullable=False),
    )
    op.add_column("agents", sa.Column("name", sa.Text))
    op.add_column("agents", sa.Column("tools", sa.ARRAY(sa.Text)))
    op.add_column("agents", sa.Column("delegates", sa.ARRAY(sa.Text)))
