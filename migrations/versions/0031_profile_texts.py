"""Creates the table of profile texts that a model wrote about users."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.create_table(
        "profile_texts",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("sentences", ARRAY(sa.Text), nullable=False),
        sa.Column("memories", JSONB, nullable=False, comment="for each sentence, the ids of those that it says"),
        sa.Column("lines", ARRAY(UUID(as_uuid=True)), nullable=False, comment="the memories that the model read"),
        sa.Column("seq", sa.BigInteger, nullable=False, comment="sequence of the event that wrote it"),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False),
    )
