"""Creates tables for limits of users, admitted requests, and usage by user."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import UUID

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "limits",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("plan", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("most", sa.Float, nullable=False),
    )
    op.create_table(
        "admissions",
        sa.Column("id", UUID(as_uuid=True), primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("thread_id", sa.Text),
        sa.Column("agent", sa.Text),
        sa.Column("admitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "held_until",
            sa.DateTime(timezone=True),
            comment="end of the lease of a request under way; NULL: it has ended",
        ),
        comment="Requests that the throttle admitted in the last hour or two; no read model.",
    )
    op.create_index("admissions_user", "admissions", ["tenant", "user_id", "admitted_at"])
    op.create_index("admissions_thread", "admissions", ["tenant", "thread_id", "admitted_at"])
    op.create_index(
        "admissions_held", "admissions", ["tenant", "user_id"], postgresql_where=sa.text("held_until IS NOT NULL")
    )
    op.create_index("usage_user", "usage", ["tenant", "user_id", "day"])
