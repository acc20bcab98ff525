"""Stores metadata of memories."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("memories", sa.Column("metadata", JSONB, comment="a JSON object of the application's own"))
