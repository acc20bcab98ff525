"""Creates the table of a tenant's agents, and stores metadata of conversations."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("type", sa.Text, primary_key=True),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("system_prompt", sa.Text),
        sa.Column("temperature", sa.Float),
        sa.Column("max_tokens", sa.Integer),
        sa.Column("model", sa.Text),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.add_column("thread_activity", sa.Column("metadata", JSONB, comment="a JSON object of the application's own"))
