"""Creates tables for processes with their roles, and for the positions of durable consumers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "processes",
        sa.Column("id", UUID(as_uuid=True), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False, comment="by the clock of its machine, in seconds since 1970"),
        sa.Column("roles", sa.ARRAY(sa.Text), nullable=False),
        sa.Column("loops", JSONB, nullable=False, comment="what must not end in it, and how each was at the last beat"),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        comment="Processes that play roles: each renews its row, and deletes it when it ends as asked; no read model.",
    )
    op.create_table(
        "durables",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("log", sa.Text, primary_key=True, comment="which log its positions are of"),
        sa.Column("position", sa.BigInteger, nullable=False, comment="all events up to it were acknowledged"),
        comment="How far the durable consumers of workers are: one that is deleted begins there again; no read model.",
    )
