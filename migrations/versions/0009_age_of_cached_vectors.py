"""Stores when a vector was cached, so that unneeded vectors can be deleted after a day."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    created = sa.Column("created_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.func.now())
    op.add_column("embedding_cache", created)
