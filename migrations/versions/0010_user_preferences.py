"""Creates the table of preferences that users set by hand."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "user_preferences",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("preferences", JSONB, nullable=False, comment="the preferences set by hand, by name"),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
    )
