"""Stores how often a sign-in to MCP was refreshed."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    of_key = "of the sign-in it stands for"
    count = sa.Column("refreshes", sa.Integer, nullable=False, server_default="0", comment=of_key)
    op.add_column("api_key_uses", count)
    last = sa.Column("refreshed_at", sa.DateTime(timezone=True), comment="the last of these")
    op.add_column("api_key_uses", last)
